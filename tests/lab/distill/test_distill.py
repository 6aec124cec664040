"""The whole recipe on a random target of a few thousand weights: generate, cache, train, save, load, draft."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file

from spin_core import zoo
from spin_core.__main__ import main
from spin_core.lab.distill import corpus, train as training
from spin_core.lab.distill.command import distill, divide, load
from spin_core.lab.distill.decode import BatchDecoder
from spin_core.lab.distill.drafters import Recipe, draft_vocabulary, own_parameters, prune
from spin_core.lab.distill.evaluate import chain, score, tokens_per_verification
from spin_core.lab.distill.generate import generate
from spin_core.lab.distill.loss import CHUNK, distribution_loss
from spin_core.lab.distill.prompts import PromptWriter
from spin_core.lab.distill.states import compute
from spin_core.lab.distill.table import TableRecipe, make_table
from spin_core.lab.distill.unroll import unroll
from spin_core.engine import Engine
from spin_core.files import locked
from spin_core.request import SamplingParams
from spin_core.zoo.pruned import load_pruned
from spin_core.zoo.table import load_table
from tests import tiny

RECIPES = {"plain": Recipe(2, 30, 5e-3), "fed": Recipe(1, 30, 5e-3, fed=True, depth=3)}
SETTINGS = {"batch": 8, "steps": 40, "checkpoint_seconds": 1e9, "evaluations": 4}


@pytest.fixture(scope="module", params=list(RECIPES))
def name(request) -> str:
    return request.param


QUIET = dict(budget=60, answer_tokens=6000, seed=5, shard_size=64, settings=SETTINGS, tell=lambda line: None)


@pytest.fixture(scope="module")
def made(family, tmp_path_factory):
    """Both drafters, made by one command."""
    out = tmp_path_factory.mktemp("made")
    distill(family, RECIPES, out, **QUIET)
    return out


def test_training_lowers_the_loss_and_raises_tokens_per_verification(made, name):
    log = json.loads((made / name / f"{name}.json").read_text())["log"]
    assert log[-1]["loss"] < log[0]["loss"]
    key = "held_out_tokens_per_verification"
    assert log[-1][key] >= log[0][key] > 1


def test_facts_stand_beside_the_weights(made, family, name):
    facts = json.loads((made / name / f"{name}.json").read_text())
    shards = [corpus.read(p) for p in corpus.paths(made / "data")]
    assert facts["data"] == corpus.fingerprint(shards) and facts["seed"] == 5 and facts["steps"] == 40
    assert load_pruned(made / name / f"{name}.safetensors", family.target, family.vocab_size).description


@pytest.fixture
def copied(made, tmp_path):
    """What was made, to be changed."""
    return shutil.copytree(made, tmp_path / "copied")


@pytest.mark.parametrize("params", [SamplingParams(max_new_tokens=24),
                                    SamplingParams(temperature=.8, top_k=9, max_new_tokens=24, seed=4)])
def test_saved_drafter_drafts_losslessly(made, family, name, params):
    drafter = load_pruned(made / name / f"{name}.safetensors", family.target, family.vocab_size)
    served = tiny.ReadingFamily(family.target, {name: drafter})
    prompts = ["one prompt", "x", "and a third"]
    plain = Engine(served, "none", max_batch=3, max_len=60).generate(prompts, params)
    engine = Engine(served, name, gamma=4, max_batch=3, max_len=60)
    requests = engine.generate(prompts, params)
    if params.greedy:
        assert [r.output_ids for r in requests] == [r.output_ids for r in plain]
    assert not engine.retired and engine.trace.metrics()["accepted"] > 0
    tiny.assert_idle(engine)


def test_engine_confirms_the_counted_tokens_per_verification(made, family, name):
    """Counting hits on the target's text says what the engine then does, chain by chain."""
    drafter = load_pruned(made / name / f"{name}.safetensors", family.target, family.vocab_size)
    served = tiny.ReadingFamily(family.target, {name: drafter})
    prompts = ["counted", "again", "abcdefg", "h"]
    for gamma in (1, 4):
        engine = Engine(served, name, gamma=gamma, max_batch=2, max_len=80)
        requests = engine.generate(prompts, SamplingParams(max_new_tokens=30))
        shard = corpus.Shard.build([r.prompt_ids for r in requests], [r.output_ids for r in requests], [0.] * 4)
        states = compute(family.target, shard, family.vocab_size)
        with torch.no_grad():               # in the engine's precision: half precision may tip an argmax
            states.hidden = torch.cat([family.target.model(input_ids=torch.tensor([r.ids])).last_hidden_state[0]
                                       for r in requests])
        scores = score(drafter.model, drafter.ids, family.target, shard, states, batch=3)
        assert tokens_per_verification(scores, gamma) == pytest.approx(
            engine.trace.metrics()["tokens_per_verification"])


def test_a_resumed_run_ends_with_the_same_weights(made, family, tmp_path, name, monkeypatch):
    """Killed behind a checkpoint, at any step, and started again: bit for bit what the unbroken run gave."""
    shutil.copytree(made / "data", tmp_path / "data")
    steps = 0
    real = training.loss

    def dying(*args):
        nonlocal steps
        steps += 1
        if steps == 18:
            raise KeyboardInterrupt
        return real(*args)

    arguments = QUIET | {"settings": SETTINGS | {"checkpoint_seconds": 0.0}}
    with monkeypatch.context() as patch:
        patch.setattr(training, "loss", dying)
        with pytest.raises(KeyboardInterrupt):
            distill(family, {name: RECIPES[name]}, tmp_path, **arguments)
    assert torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["step"] == 17
    # more data than the run began with, as a time budget may allow when it is started again
    distill(family, {name: RECIPES[name]}, tmp_path, **arguments | {"answer_tokens": 12000})
    assert len(corpus.paths(tmp_path / "data")) > len(corpus.paths(made / "data"))
    ours, theirs = (load_file(folder / name / f"{name}.safetensors") for folder in (tmp_path, made))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    ours, theirs = (json.loads((folder / name / f"{name}.json").read_text()) for folder in (tmp_path, made))
    assert all(ours[key] == theirs[key] for key in ("data", "shards", "answer_tokens", "held_out_tokens"))


def test_a_finished_run_goes_on_with_more_steps(copied, family):
    before = load_file(copied / "plain" / "plain.safetensors")
    distill(family, {"plain": RECIPES["plain"]}, copied, **QUIET | {"settings": SETTINGS | {"steps": 44}})
    after = load_file(copied / "plain" / "plain.safetensors")
    assert json.loads((copied / "plain" / "plain.json").read_text())["steps"] == 44
    assert torch.equal(before.pop("draft_ids"), after.pop("draft_ids"))
    assert not all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("change, says", [
    ({"seed": 6}, "seed 5, now 6"), ({"settings": SETTINGS | {"batch": 4}}, "batch 8, now 4"),
    ({"recipe": Recipe(2, 20, 5e-3)}, "recipe's vocab 30, now 20")])
def test_a_checkpoint_of_another_run_is_refused(copied, family, change, says):
    recipe = change.pop("recipe", RECIPES["plain"])
    files = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=f"checkpoint.pt is of another run .*{says}.*another --out, or delete"):
        distill(family, {"plain": recipe}, copied, **QUIET | {"answer_tokens": 99999} | change)
    assert files == {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}


def test_a_checkpoint_of_other_data_is_refused(copied, family):
    first = corpus.paths(copied / "data")[0]
    shard = corpus.read(first)
    shard.tokens[-1] += 1
    corpus.write(first, shard, {"seed": "5"})
    with pytest.raises(ValueError, match="another run .data .*, now .*another --out, or delete the checkpoint"):
        distill(family, {"plain": RECIPES["plain"]}, copied, **QUIET)


def test_a_checkpoint_that_does_not_name_its_run_is_refused(copied, family):
    path = copied / "plain" / "checkpoint.pt"
    state = torch.load(path, weights_only=True)
    del state["identity"]
    torch.save(state, path)
    with pytest.raises(ValueError, match="does not say which run left it.*another --out, or delete the checkpoint"):
        distill(family, {"plain": RECIPES["plain"]}, copied, **QUIET)


def test_data_of_another_seed_are_refused(made, family):
    with pytest.raises(ValueError, match="data of seed 5, not 6"):
        generate(family, made / "data", 1, seed=6, tell=lambda line: None)


@pytest.mark.parametrize("option, least", [("--steps", 1), ("--batch", 1), ("--shard", 2), ("--answer-tokens", 1)])
def test_numbers_that_make_no_drafter_are_refused_before_the_work(monkeypatch, tmp_path, capsys, option, least):
    monkeypatch.setattr(zoo, "load", lambda *args, **options: pytest.fail("it has begun to work"))
    out = tmp_path / "out"
    arguments = ["distill", "--drafter", "pruned-1L-4k", "--out", str(out), option, str(least - 1)]
    assert main(arguments) == 2
    assert f"{option} {least - 1}: must be at least {least}" in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize("option, value, reason", [
    ("--budget-minutes", "0", "must be a number of minutes above 0"), ("--budget-minutes", "-1", "above 0"),
    ("--budget-minutes", "nan", "above 0"), ("--budget-minutes", "inf", "above 0"),
    ("--answer-tokens", "-5", "--answer-tokens -5: must be at least 1")])
def test_budgets_that_make_no_drafter_are_refused_before_the_work(monkeypatch, tmp_path, capsys, option, value, reason):
    monkeypatch.setattr(zoo, "load", lambda *args, **options: pytest.fail("it has begun to work"))
    out = tmp_path / "out"
    assert main(["distill", "--drafter", "pruned-1L-4k", "--out", str(out), option, value]) == 2
    assert reason in capsys.readouterr().err and not out.exists()


def test_a_second_run_into_the_same_folder_is_refused(family, tmp_path):
    with locked(tmp_path), pytest.raises(BlockingIOError, match=str(tmp_path)):
        distill(family, RECIPES, tmp_path, **QUIET)


def test_a_full_disk_is_named_and_leaves_no_part_of_a_file(family, tmp_path):
    with tiny.little_room(), pytest.raises(OSError, match="cannot write .*safetensors"):
        distill(family, RECIPES, tmp_path, **QUIET)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"]


def test_a_folder_that_cannot_be_written_is_noticed_before_the_work(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(zoo, "load", lambda *args, **options: pytest.fail("it has begun to work"))
    (tmp_path / "file").touch()
    assert main(["distill", "--drafter", "pruned-1L-4k", "--out", str(tmp_path / "file")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_a_shard_of_one_sequence_is_never_made(family, tmp_path):
    with pytest.raises(ValueError, match="--shard 1: must be at least 2"):
        distill(family, RECIPES, tmp_path, **QUIET | {"shard_size": 1})
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["shard", "states"])
def test_a_damaged_file_is_named(copied, family, kind):
    path = copied / "data" / f"{kind}-00000.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=f"{path.name} is damaged"):
        load(copied / "data")
    with pytest.raises(ValueError, match=f"{path.name} is damaged"):
        distill(family, {"new": RECIPES["plain"]}, copied, **QUIET)


def test_the_seed_fixes_the_data_and_an_interrupted_write_leaves_no_shard(family, tmp_path, monkeypatch):
    quiet = dict(seed=2, shard_size=12, tell=lambda line: None)
    generate(family, tmp_path / "a", 1500, **quiet)
    whole = [p.read_bytes() for p in corpus.paths(tmp_path / "a")]
    assert len(whole) > 2

    real, calls = os.replace, []

    def failing(source, target):
        calls.append(target)
        if len(calls) == 4:                 # the second shard, whose states are written
            raise OSError("disk full")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        with pytest.raises(OSError, match="disk full"):
            generate(family, tmp_path / "b", 1500, **quiet)
    assert len(corpus.paths(tmp_path / "b")) == 1
    generate(family, tmp_path / "b", 1500, **quiet)
    assert [p.read_bytes() for p in corpus.paths(tmp_path / "b")] == whole
    generate(family, tmp_path / "c", 1500, **quiet | {"seed": 3})
    assert [p.read_bytes() for p in corpus.paths(tmp_path / "c")] != whole


def test_batch_decoding_is_greedy_decoding(family):
    prompts = [[5, 9, 11], [7], [1, 2, 4, 5, 6, 8, 9], [30, 31]]
    decoder = BatchDecoder(family.target, family.vocab_size, family.stop_ids)
    decoded = decoder(prompts, [0.0] * 4, 20, torch.Generator().manual_seed(0))
    for prompt, answer in zip(prompts, (d.answer for d in decoded)):
        assert tiny.logits(family.target, prompt + answer)[len(prompt) - 1:-1].argmax(-1).tolist() == answer
        assert tiny.STOP not in answer[:-1] and (len(answer) == 20 or answer[-1] == tiny.STOP)


def test_states_kept_while_decoding_are_those_of_a_second_pass(made, family):
    shards, states = load(made / "data")
    for shard, kept in zip(shards, states):
        again = compute(family.target, shard, family.vocab_size)
        last = (shard.starts + shard.lengths - 1).long()        # the target never reads a text's last token
        inner = torch.ones(len(shard.tokens), dtype=torch.bool).index_fill(0, last, False)
        deciding = again.log_z != 0
        torch.testing.assert_close(kept.hidden[inner], again.hidden[inner], rtol=2e-3, atol=2e-3)
        torch.testing.assert_close(kept.log_z[deciding], again.log_z[deciding], rtol=1e-5, atol=1e-4)


def test_batch_decoding_samples_the_law(family):
    """Two thousand first tokens against the target's distribution: a chi-square far below what a wrong temperature gives."""
    decoder = BatchDecoder(family.target, family.vocab_size, family.stop_ids)
    first = [d.answer[0] for d in decoder([[5, 9, 11]] * 2000, [.7] * 2000, 1, torch.Generator().manual_seed(1))]
    distribution = (tiny.logits(family.target, [5, 9, 11])[-1] / .7).softmax(-1) * 2000
    seen = torch.bincount(torch.tensor(first), minlength=tiny.VOCAB)
    often = distribution > 5
    assert float(((seen - distribution) ** 2 / distribution)[often].sum()) < 2.5 * int(often.sum()) + 10


def test_unrolled_depths_are_what_serving_computes(family):
    """Depth by depth, the unrolled states equal a chain read token by token with the drafter's own states."""
    recipe = RECIPES["fed"]
    model = prune(family.target, recipe, torch.arange(30)).eval()
    tokens = torch.randint(tiny.VOCAB, (1, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        hidden = family.target.model(input_ids=tokens).last_hidden_state
        depths = unroll(model, tokens, hidden, 3)
        model.set_attn_implementation("eager")
        for end in range(3, 9):                     # the verified text is tokens[:end - 1]; two more are drafted
            before = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :end - 2]], 1)
            for depth in range(3):
                length = end - 1 + depth
                if length > 9:
                    break
                states = model.body(tokens[:, :length], before, use_cache=False).last_hidden_state
                torch.testing.assert_close(states[0, -1], depths[depth][0, length - 1], rtol=1e-4, atol=1e-4)
                before = torch.cat([before, states[:, -1:]], 1)


def test_draft_vocabulary_ranks_answers_and_keeps_stops():
    shard = corpus.Shard.build([[9, 9, 9]], [[4, 5, 5, 4, 5, 6]], [0.0])
    assert draft_vocabulary(shard, 3, 12, (2,)).tolist() == [2, 4, 5]
    assert len(draft_vocabulary(shard, 99, 12, (2,))) == 12


def test_chains_by_hand():
    hits = [[True, True, False, True, True, True]]
    assert chain(hits, 2) == [(2, 2), (2, 2)]               # the last token is the target's own
    assert chain(hits, 1) == [(1, 1), (1, 0), (1, 1), (0, 0)]
    assert chain([[False] * 3], 4) == [(2, 0), (1, 0), (0, 0)]
    assert chain([[True] * 5, [False] * 5], 4) == [(4, 1), (2, 1), (0, 0)]         # lost on its own states
    assert chain([[True] * 5], 4, waits=True) == [(0, 0), (3, 3)]


def test_held_out_sequences_are_not_trained_on(family, made):
    shards, states = load(made / "data")
    (train_set, _), (held, held_states) = divide(shards, states)
    seen = {tuple(sum(train_set.sequence(i), [])) for i in range(len(train_set.lengths))}
    assert len(train_set.lengths) + sum(s.held_out for s in shards) == sum(len(s.lengths) for s in shards)
    assert float(held.temperatures.abs().max()) == 0 and len(held_states.hidden) == len(held.tokens)
    assert any(tuple(sum(held.sequence(i), [])) not in seen for i in range(len(held.lengths)))


def test_a_drafter_borrows_embedding_and_head(family):
    model = prune(family.target, RECIPES["fed"], torch.arange(30))
    trained = own_parameters(model)
    assert model.model.embed_tokens.weight is family.target.model.embed_tokens.weight
    assert not model.lm_head.weight.requires_grad and "fuse.weight" in trained
    assert {p for p in model.parameters() if p.requires_grad} == set(trained.values())


def test_prompts_are_seeded_and_varied():
    one, two, other = PromptWriter(1), PromptWriter(1), PromptWriter(2)
    texts = [one.fresh()[0]["content"] for _ in range(300)]
    assert texts == [two.fresh()[0]["content"] for _ in range(300)] != [other.fresh()[0]["content"] for _ in range(300)]
    assert len(set(texts)) > 270 and not any("{" in t and "}" in t for t in texts)
    assert "passage" in one.about("passage")[0]["content"]
    assert [m["role"] for m in one.second_turn(one.fresh(), "answer")] == ["user", "assistant", "user"]


def test_a_drafter_may_begin_as_another(made, family, tmp_path):
    """Fed with nothing yet, it is the other; and it says what to do when the other is not there."""
    recipe = Recipe(2, 30, 0.0, fed=True, depth=2, begins="plain")
    (tmp_path / "data").symlink_to(made / "data")
    arguments = dict(budget=60, answer_tokens=1, seed=5, shard_size=64, settings=SETTINGS | {"steps": 2},
                     tell=lambda line: None)
    with pytest.raises(ValueError, match="begins as plain, which is not there.*--drafter plain --drafter later"):
        distill(family, {"later": recipe}, tmp_path, **arguments)
    (tmp_path / "plain").symlink_to(made / "plain")
    distill(family, {"later": recipe}, tmp_path, **arguments)
    later = load_file(tmp_path / "later" / "later.safetensors")
    plain = load_file(made / "plain" / "plain.safetensors")
    assert not later.pop("fuse.weight")[:, :32].any()           # columns that read states
    assert later.keys() == plain.keys() and all(torch.equal(later[k], plain[k]) for k in plain)


def test_the_fused_loss_and_its_gradient_are_those_of_its_definition():
    generator = torch.Generator().manual_seed(3)
    positions, size, vocab = 2 * CHUNK + 5, 6, 11
    body, hidden = (torch.randn(positions, size, generator=generator, dtype=torch.float64) for _ in range(2))
    head = torch.randn(vocab, size, generator=generator, dtype=torch.float64)
    log_z = (hidden @ head.T).logsumexp(-1) + .3            # some of the target's mass lies outside the draft vocabulary
    weight = torch.rand(positions, generator=generator, dtype=torch.float64)
    fused, plain = (body.clone().requires_grad_(True) for _ in range(2))
    value = distribution_loss(fused, head, hidden, log_z, weight)
    value.backward()
    p = (hidden @ head.T - log_z[:, None]).exp()
    log_q = (plain @ head.T).log_softmax(-1)
    each = -.5 * (p * log_q).sum(-1) - .5 * torch.minimum(p, log_q.exp()).sum(-1)
    expected = (weight * each).sum()
    expected.backward()
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(fused.grad, plain.grad, rtol=1e-4, atol=1e-6)


def test_a_table_is_made_from_the_same_data_without_the_held_out_part(made, family):
    """Asked for alone, where the data are there already."""
    shards, _ = load(made / "data")
    distill(family, {"habits": TableRecipe(50)}, made, budget=60, answer_tokens=1, seed=5, tell=lambda line: None)
    table = load_table(made / "habits" / "habits.safetensors", family.vocab_size)
    expected = make_table([s.take(torch.arange(s.held_out, len(s.lengths))) for s in shards], family.vocab_size, 50)
    assert torch.equal(table.contexts, expected["contexts"]) and len(table.contexts) == 50
    assert torch.equal(table.followers, expected["followers"])
