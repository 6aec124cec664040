"""SPIRe's parts: what is trained is what is served, rung by rung, and a drafter that learns what another misses."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from spin_core.lab.bench import spire as bench
from spin_core.lab.bench.boost import coverage
from spin_core.lab.distill import corpus
from spin_core.lab.distill.boost import missed, older
from spin_core.lab.distill.command import distill, load
from spin_core.lab.distill.drafters import LADDER, SPIRE, own_parameters, prune, rung_name, save
from spin_core.lab.distill.evaluate import score, tokens_per_verification
from spin_core.lab.distill.loss import distribution_loss
from spin_core.lab.distill.states import compute
from spin_core.lab.distill.train import Data, columns
from spin_core.lab.distill.unroll import unroll
from spin_core.engine import Engine
from spin_core.request import SamplingParams
from spin_core.zoo.pruned import load_pruned
from tests import tiny

RUNGS = {rung: replace(recipe, vocab=30, depth=min(recipe.depth, 2), window=recipe.window and 10, rate=5e-3)
         for rung, recipe in LADDER.items()}
SETTINGS = {"batch": 8, "steps": 3, "checkpoint_seconds": 1e9, "evaluations": 1}


@pytest.mark.parametrize("rung", ["SPIRe", "no sparse KV cache", "no feedback memory", "also no target activations"])
def test_what_is_counted_in_training_is_what_the_engine_does(family, rung, tmp_path):
    """Window, memory and states: unrolled over whole texts, and served from a ring token by token, the same count."""
    model = prune(family.target, RUNGS[rung], torch.arange(30))
    with torch.no_grad():           # every part takes part
        for name, part in own_parameters(model).items():
            part.copy_(part.bfloat16() if name != "mix" else torch.tensor([.5, 1.0]))
        if RUNGS[rung].fed:
            model.fuse.weight[:, :32] += .4 * torch.eye(32)
    path = tmp_path / "made.safetensors"
    save(path, model, torch.arange(30), {})
    drafter = load_pruned(path, family.target, family.vocab_size)
    assert drafter.model.config.window == RUNGS[rung].window
    served = tiny.ReadingFamily(family.target, {"made": drafter})
    params = SamplingParams(max_new_tokens=18, stop_ids=())
    prompts = ["counted", "abcdefghijkl", "h"]
    engine = Engine(served, "made", gamma=4, max_batch=2, max_len=80)
    requests = engine.generate(prompts, params)
    plain = Engine(served, "none", max_batch=2, max_len=80).generate(prompts, params)
    assert [r.output_ids for r in requests] == [r.output_ids for r in plain] and not engine.retired
    shard = corpus.Shard.build([r.prompt_ids for r in requests], [r.output_ids for r in requests], [0.] * 3)
    states = compute(family.target, shard, family.vocab_size)
    with torch.no_grad():           # in the engine's precision: half precision may tip an argmax
        states.hidden = torch.cat([family.target.model(input_ids=torch.tensor([r.ids])).last_hidden_state[0]
                                   for r in requests])
    scores = score(drafter.model, drafter.ids, family.target, shard, states, batch=2)
    assert tokens_per_verification(scores, 4) == pytest.approx(engine.trace.metrics()["tokens_per_verification"])


def test_the_memory_is_a_mix_of_all_layers_and_strictly_past(family):
    model = prune(family.target, RUNGS["SPIRe"], torch.arange(30)).eval()
    tokens = torch.randint(tiny.VOCAB, (1, 14), generator=torch.Generator().manual_seed(0))
    states = torch.randn(1, 14, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model.mix.copy_(torch.tensor([-50.0, 50.0]))
        output = model.body(tokens, states, use_cache=False)
        torch.testing.assert_close(model.carried(output), output.last_hidden_state)
        model.mix.copy_(torch.tensor([50.0, -50.0]))
        read = model.fuse(torch.cat([states, model.model.embed_tokens(tokens)], -1))
        torch.testing.assert_close(model.carried(output), model.model.norm(read))
        model.mix.zero_()
        before = unroll(model, tokens, states, 2)
        for later in range(14):
            changed = states.index_fill(1, torch.tensor([later]), 3.0)
            for depth, (one, other) in enumerate(zip(before, unroll(model, tokens, changed, 2)), 1):
                # at depth d a token reads the states of d tokens before it, and no later ones
                assert torch.equal(one[:, :later + depth], other[:, :later + depth])


def test_rungs_differ_in_what_they_are_called_for(family):
    made = {rung: prune(family.target, recipe, torch.arange(30)) for rung, recipe in RUNGS.items()}
    last = family.target.model.layers[-1].mlp.up_proj.weight
    for rung, model in made.items():
        begins_elsewhere = rung in ("random initialisation", "also no target activations")
        assert torch.equal(model.model.layers[0].mlp.up_proj.weight, last) != begins_elsewhere
        remembers = RUNGS[rung].fed and rung != "no feedback memory"
        assert hasattr(model, "mix") == (model.config.carry == "mix") == remembers
    assert {rung_name(r) for r in LADDER} >= {"spire", "spire-no-sparse-KV-cache"} and len(set(LADDER.values())) == 7
    assert SPIRE.window == 64


@pytest.mark.parametrize("overlap, hard", [(.5, False), (0.0, False), (.9, False), (0.0, True), (.3, True)])
def test_the_fused_loss_and_its_gradient_are_those_of_its_definition(overlap, hard):
    generator = torch.Generator().manual_seed(3)
    positions, size, ids = 300, 6, torch.tensor([2, 3, 5, 7, 11])
    body, hidden = (torch.randn(positions, size, generator=generator, dtype=torch.float64) for _ in range(2))
    head = torch.randn(5, size, generator=generator, dtype=torch.float64)
    log_z = (hidden @ head.T).logsumexp(-1) + .3
    weight = torch.rand(positions, generator=generator, dtype=torch.float64)
    said = columns(ids, torch.randint(13, (positions,), generator=generator))
    assert (said >= 0).any() and (said < 0).any()
    fused, plain = (body.clone().requires_grad_(True) for _ in range(2))
    distribution_loss(fused, head, hidden, log_z, weight, overlap=overlap, said=said if hard else None).backward()
    p = (hidden @ head.T - log_z[:, None]).exp()
    if hard:
        p = torch.stack([torch.eye(5, dtype=torch.float64)[c] if c >= 0 else torch.zeros(5, dtype=torch.float64)
                         for c in said.tolist()])
    log_q = (plain @ head.T).log_softmax(-1)
    each = -(1 - overlap) * (p * log_q).sum(-1) - overlap * torch.minimum(p, log_q.exp()).sum(-1)
    (weight * each).sum().backward()
    torch.testing.assert_close(fused.grad, plain.grad, rtol=1e-4, atol=1e-6)


def test_every_rung_is_trained_and_the_ladder_told(family, tmp_path):
    quiet = dict(budget=60, answer_tokens=1500, seed=5, shard_size=48, settings=SETTINGS, tell=lambda line: None)
    distill(family, {rung_name(rung): recipe for rung, recipe in RUNGS.items()}, tmp_path, **quiet)
    rows = bench.ladder(tmp_path)
    assert [row["rung"] for row in rows] == list(LADDER) and all(row["tokens_per_verification"] >= 1 for row in rows)
    assert [row["published"] for row in rows] == [3.401, 3.401, 3.105, 3.069, 3.375, 3.352, 2.959]
    log = json.loads((tmp_path / "spire" / "spire.json").read_text())
    assert log["recipe"]["carry"] == "mix" and log["recipe"]["window"] == 10
    (tmp_path / "spire" / "spire.json").write_text(json.dumps(log | {"steps": 4}))
    with pytest.raises(ValueError, match="cannot be compared"):
        bench.ladder(tmp_path)
    with pytest.raises(ValueError, match="no trained rung.*--drafter spire "):
        bench.ladder(tmp_path / "nothing")

    # boost-tuning, with what has been made
    elder = older(family, "spire", tmp_path)
    shards, states = load(tmp_path / "data")
    wanted = missed(elder, family.target, shards[0], states[0])
    hits = score(elder.model, elder.ids, family.target, shards[0], states[0], depth=1)
    assert int(wanted.sum()) == sum(not h for s in hits for h in s.hits[0]) > 0
    learned = sum(int(batch[3].sum()) for batch in map(Data(shards[0], states[0], torch.device("cpu"), wanted).gather,
                                                       torch.arange(len(shards[0].lengths)).split(7)))
    assert learned == int(wanted.sum())
    recipe = RUNGS["also no target activations"]
    distill(family, {"second": recipe}, tmp_path, boost_after="spire", **quiet)
    facts = json.loads((tmp_path / "second-after-spire" / "second-after-spire.json").read_text())
    assert facts["boost_after"] == "spire" and 0 < facts["answer_tokens_wanted"] < facts["answer_tokens"]
    names = [rung_name("random initialisation"), "second-after-spire"]
    one, other = coverage(family, "spire", names, tmp_path, shards[0], states[0])
    known = 1 - int(wanted.sum()) / shards[0].answer_tokens
    assert one["first_right"] == other["first_right"] == pytest.approx(known)
    for row in (one, other):
        first, second, either = (row[f"{who}_right"] for who in ("first", "second", "either"))
        assert max(first, second) <= either <= first + second
    with pytest.raises(ValueError, match="unknown drafter 'nobody'"):
        distill(family, {"second": recipe}, tmp_path, boost_after="nobody", **quiet)


@pytest.mark.parametrize("change, says", [({"window": "x"}, "window 'x'"), ({"carry": "last"}, "'mix' and carry"),
                                          ({"carry": "all"}, "'mix' and carry")])
def test_a_file_that_contradicts_itself_is_refused(family, tmp_path, change, says):
    save(tmp_path / "a.safetensors", prune(family.target, RUNGS["SPIRe"], torch.arange(30)), torch.arange(30), {})
    facts = {"window": "10", "carry": "mix"} | change
    save_file(load_file(tmp_path / "a.safetensors"), tmp_path / "b.safetensors", facts)
    with pytest.raises(ValueError, match=says):
        load_pruned(tmp_path / "b.safetensors", family.target, family.vocab_size)
