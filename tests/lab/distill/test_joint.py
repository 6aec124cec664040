"""Heads that are trained together: the compiled pieces compute what the models do, and a run goes on where it was."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch.nn import Linear

from spin_core.lab.distill import corpus, fused, joint, reading
from spin_core.lab.distill.evaluate import score, tokens_per_verification
from spin_core.lab.distill.kinds import kind_of, user_turns
from spin_core.lab.distill.loss import distribution_loss
from spin_core.lab.distill.states import compute
from spin_core.lab.distill.unroll import unroll
from spin_core.draft import Eagle3Llama, FedLlama
from spin_core.zoo.fed import LAST
from spin_core.zoo.pruned import load_pruned

from tests import tiny

HEAD = joint.HeadRecipe(vocab=24, form="eagle3", reads=(1, 2, 4))
RECIPES = {"head": HEAD, "two": replace(HEAD, layers=2, vocab=30), "fed": joint.HeadRecipe(vocab=30, reads=(1, 2, LAST)),
           "special": replace(HEAD, kind="story")}


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """float32 throughout, nothing compiled, and sizes of a tiny model."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    for module in (fused, reading, joint):
        monkeypatch.setattr(module, "HALF", torch.float32)
    monkeypatch.setattr(joint, "WINDOW", 24)
    monkeypatch.setattr(joint, "WARM_UP", 4)
    torch.manual_seed(0)


@pytest.fixture
def data(family, tmp_path):
    """Two shards of the target's greedy texts."""
    generator = torch.Generator().manual_seed(1)
    for number in range(2):
        tokens = torch.randint(0, tiny.VOCAB, (40, 6), generator=generator)
        with torch.no_grad():
            while tokens.shape[1] < 26:
                tokens = torch.cat([tokens, family.target(tokens).logits[:, -1:].argmax(-1)], 1)
        texts = [row[:26 - i % 3].tolist() for i, row in enumerate(tokens)]
        corpus.write(tmp_path / "data" / f"shard-{number:05d}.safetensors",
                     corpus.Shard.build([t[:6 - i % 3] for i, t in enumerate(texts)],
                                        [t[6 - i % 3:] for i, t in enumerate(texts)], [0.0] * 40))
    return tmp_path / "data"


@pytest.fixture
def served(family, monkeypatch):
    """Every prompt has a kind."""
    kinds = iter(range(10**6))
    monkeypatch.setattr(joint, "kind_of", lambda turns: joint.KINDS[next(kinds) % 4])
    return family


def run(family, data, out, steps, names=("head",)):
    joint.run(family, {name: RECIPES[name] for name in names}, out, [data], store_gb=.01, evaluate_minutes=0.0,
              steps=steps)


def entries(out, event):
    lines = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    return [line for line in lines if line.get("event") == event]


def head_of(parameters, recipe, target):
    """The model of a head's parameters."""
    config = type(target.config)(**target.config.to_dict() | {"num_hidden_layers": recipe.layers,
                                                              "tie_word_embeddings": False})
    config.layers_read = recipe.reads
    model = (FedLlama if recipe.form == "fed" else Eagle3Llama)(config)
    model.load_state_dict({(key if key.startswith(("fc", "fuse")) else f"model.{key}"): value for key, value in parameters.items()},
                          strict=False)
    model.model.embed_tokens = target.model.embed_tokens
    model.lm_head = Linear(1, 1)
    return model


@pytest.mark.parametrize("name", ["head", "two", "fed"])
def test_pieces_compute_what_a_head_computes(family, name):
    recipe, target = RECIPES[name], family.target
    parameters = joint.begin(name, recipe, target)
    model = head_of(parameters, recipe, target)
    tokens = torch.randint(0, tiny.VOCAB, (3, 15))
    states = torch.randn(3, 15, 3 * 32)
    whole = states if name == "fed" else torch.cat([states, torch.randn(3, 15, 32)], -1)    # in a batch: the last too
    expected = unroll(model, tokens, states, 4)
    angles = reading.Reader(target, tiny.VOCAB, recipe.reads).angles(14)
    place = torch.tensor([3, 4, 5])[:, None] + torch.arange(9)
    batch = joint.Batch(whole[:, :-1], target.model.embed_tokens(tokens[:, 1:]), place, place >= 0, angles, place, place)
    layers = tuple(layer for layer in recipe.reads if layer != LAST)
    trainer = joint.HeadTrainer(name, recipe, target, torch.arange(recipe.vocab), layers)
    for depth, (ours, theirs) in enumerate(zip(trainer.bodies(fused.tree(parameters), batch, 4), expected, strict=True)):
        at = (place + 1)[..., None].expand(-1, -1, 32)
        torch.testing.assert_close(ours[:, depth:], theirs.gather(1, at)[:, depth:], rtol=1e-4, atol=1e-4)


def test_reader_reads_what_the_target_computes(family):
    reader = reading.Reader(family.target, family.vocab_size, (0, 2, 4))
    tokens = torch.randint(0, tiny.VOCAB, (2, 9))
    kept = []
    hook = family.target.model.norm.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    with torch.no_grad():
        out = family.target.model(tokens, output_hidden_states=True)
    hook.remove()
    expected = torch.cat([out.hidden_states[0], out.hidden_states[2], kept[0], out.last_hidden_state], -1)
    torch.testing.assert_close(reader.states(tokens), expected, rtol=1e-4, atol=1e-4)
    logits = family.target(tokens).logits[0]
    torch.testing.assert_close(reader.log_z(out.last_hidden_state[0]), logits.logsumexp(-1).detach(), rtol=1e-4, atol=1e-4)


def test_gradient_is_that_of_the_loss():
    body, head, hidden = torch.randn(7, 5, requires_grad=True), torch.randn(11, 5), torch.randn(7, 5)
    log_z, weight = (hidden @ head.T).logsumexp(-1) + .3, torch.rand(7)
    expected = distribution_loss(body, head, hidden, log_z, weight)
    expected.backward()
    p = fused.probabilities(hidden @ head.T, log_z)
    gradient, loss, overlap = fused.loss_and_gradient(body.detach() @ head.T, p, weight)
    torch.testing.assert_close(gradient @ head, body.grad)
    torch.testing.assert_close(loss, expected.detach())
    q = (body.detach() @ head.T).softmax(-1)
    torch.testing.assert_close(overlap, (weight * torch.minimum(p, q).sum(-1)).sum())


def test_store_is_a_ring_that_survives(tmp_path):
    path = tmp_path / "states.bin"
    store = reading.Store(path, 4, 10)
    texts = {name: (torch.randn(count, 4).bfloat16().float(), torch.randn(count)) for name, count in
             (("a", 4), ("b", 5), ("c", 3), ("d", 6))}
    for name in "abc":                  # c does not fit behind b, and takes a's place
        store.put(name, *texts[name])
    assert "a" not in store and "b" in store
    store.save()
    store.put("d", *texts["d"])         # runs over b; then the process dies
    again = reading.Store(path, 4, 10)
    assert "b" not in again and "d" not in again and list(again.where) == ["c"]
    assert all(map(torch.equal, again.get("c"), texts["c"]))
    assert not reading.Store(path, 4, 11).where, "of another size: begun anew"


def test_a_run_goes_on_where_it_was(served, data, tmp_path):
    run(served, data, tmp_path / "out", 3, ("head", "special"))
    first = torch.load(tmp_path / "out" / "head.pt", weights_only=True)
    assert first["step"] == 3 and first["tokens"] > 0
    run(served, data, tmp_path / "out", 2, ("head", "fed"))
    second = torch.load(tmp_path / "out" / "head.pt", weights_only=True)
    assert second["step"] == 5 and second["tokens"] > first["tokens"]
    assert any(not a.equal(b) for a, b in zip(first["mean"].values(), second["mean"].values()))
    starts = entries(tmp_path / "out", "start")
    assert [entry["heads"] for entry in starts] == [{"head": 0, "special": 0}, {"head": 3, "fed": 0}]
    with pytest.raises(ValueError, match="the checkpoint of head is of the recipe"):
        joint.run(served, {"head": replace(HEAD, vocab=9)}, tmp_path / "out", [data], .01)


@pytest.mark.parametrize("name", ["head", "two", "fed"])
def test_an_exported_head_is_as_good_as_its_log_says(served, data, tmp_path, name):
    out = tmp_path / "out"
    run(served, data, out, 40, (name,))
    log = entries(out, "held out")
    losses = [line["loss_overlap"][name][0] for line in map(json.loads, (out / "log.jsonl").read_text().splitlines())
              if "loss_overlap" in line]
    assert losses[-1] < losses[0]
    joint.export(out / f"{name}.pt", tmp_path / f"{name}.safetensors", {"seed": "0"}, int8=False)
    drafter = load_pruned(tmp_path / f"{name}.safetensors", served.target, served.vocab_size)
    held = joint._fixed(out / "fixed.pt", None, served)["held"]
    shard = corpus.Shard.build([t.tokens[:t.prompt].tolist() for t in held], [t.tokens[t.prompt:].tolist() for t in held],
                               [0.0] * len(held))
    states = compute(served.target, shard, served.vocab_size, layers=tuple(layer for layer in RECIPES[name].reads if layer != LAST))
    counted = tokens_per_verification(score(drafter.model, drafter.ids, served.target, shard, states), 4)
    assert counted == pytest.approx(log[-1]["tokens_per_verification"]["all"], abs=.02)


@pytest.mark.parametrize("text, kind", [
    ("Write a Python function that reverses a string.", "code"), ("Give me five facts about bees", "code"),
    ("Write a poem about rain", "story"), ("Act as a grumpy chef. Tom asks you about soup.", "story"),
    ("What is 12% of 59?", "facts"), ("Translate into French: \"I like tea.\"", "facts"),
    ("Tell me about volcanoes", "other"), ("How does one measure sleep?", "other")])
def test_kinds(text, kind):
    assert kind_of([text]) == kind
    assert kind_of(user_turns(f"system\nYou help.\nuser\n{text}\nassistant\n")) == kind
