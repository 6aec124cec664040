"""The whole recipe on a random target of a few thousand weights: generate, train, save, load, draft."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from spin_core import zoo
from spin_core.__main__ import main
from spin_core.engine import Engine
from spin_core.files import locked
from spin_core.lab.bench import spire as bench
from spin_core.lab.distill import corpus, train
from spin_core.lab.distill.command import distill, export
from spin_core.lab.distill.decode import BatchDecoder
from spin_core.lab.distill.evaluate import chain, score, tokens_per_verification
from spin_core.lab.distill.generate import generate
from spin_core.lab.distill.prompts import PromptWriter
from spin_core.lab.distill.recipes import LADDER, Recipe, rung_name
from spin_core.lab.distill.states import compute
from spin_core.lab.distill.table import TableRecipe, make_table
from spin_core.lab.simulate.spire import ABLATION
from spin_core.request import SamplingParams
from spin_core.zoo.fed import LAST
from spin_core.zoo.pruned import load_pruned
from spin_core.zoo.table import load_table
from tests import tiny

RECIPES = {"plain": Recipe(2, 30, 1, 5e-3, form="plain", reads=()), "fed": Recipe(1, 30, 3, 5e-3, reads=(LAST,)),
           "fed3": Recipe(2, 30, 3, 5e-3, reads=(1, 2, LAST)),
           "head": Recipe(1, 30, 3, 5e-3, form="eagle3", reads=(1, 2, 4)),
           "special": Recipe(1, 30, 3, 5e-3, reads=(LAST,), kind="story"),
           "spire": replace(LADDER["SPIRe"], vocab=30, depth=2, window=10, rate=5e-3)}


@pytest.fixture(scope="module", params=list(RECIPES))
def name(request) -> str:
    return request.param


QUIET = dict(budget=600, answer_tokens=6000, seed=5, shard_size=64, steps=24, evaluations=4, tell=lambda line: None)


@pytest.fixture(scope="module")
def made(family, tmp_path_factory):
    """All drafters, made by one command."""
    out = tmp_path_factory.mktemp("made")
    distill(family, RECIPES, out, **QUIET)
    return out


def states_of(family, shard, *drafters):
    layers = {layer for drafter in drafters for layer in getattr(drafter.model, "layers_read", ())}
    return compute(family.target, shard, family.vocab_size, layers=tuple(layers))


def test_training_lowers_the_loss_and_raises_tokens_per_verification(made, name):
    log = json.loads((made / name / f"{name}.json").read_text())["log"]
    assert [entry["step"] for entry in log] == [0, 6, 12, 18, 24] and log[-1]["loss"] < log[1]["loss"]
    key = "held_out_tokens_per_verification"
    assert log[-1][key] >= log[0][key] >= 1


def test_facts_stand_beside_the_weights(made, family, name):
    facts = json.loads((made / name / f"{name}.json").read_text())
    assert facts["steps"] == 24 and facts["recipe"]["layers"] == RECIPES[name].layers and len(facts["data"]) == 64
    assert load_pruned(made / name / f"{name}.safetensors", family.target, family.vocab_size).description


@pytest.fixture
def copied(made, tmp_path):
    """What was made, to be changed."""
    return shutil.copytree(made, tmp_path / "copied")


def test_a_specialist_begins_as_the_generalist_of_its_form(copied, family):
    recipe = replace(RECIPES["fed"], kind="facts")
    distill(family, {"late": recipe}, copied, **QUIET | {"steps": 25})
    lines = map(json.loads, (copied / "log.jsonl").read_text().splitlines())
    starts = [line for line in lines if line.get("event") == "start"]
    assert starts[-1]["heads"] == {"late": 24} and starts[0]["heads"] == dict.fromkeys(RECIPES, 0)
    assert train.generalist(copied, replace(recipe, layers=3)) is None


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
        engine = Engine(served, name, gamma=gamma, max_batch=2, max_len=80, bf16=False)     # as scored
        requests = engine.generate(prompts, SamplingParams(max_new_tokens=30))
        shard = corpus.Shard.build([r.prompt_ids for r in requests], [r.output_ids for r in requests], [0.] * 4)
        states = states_of(family, shard, drafter)
        with torch.no_grad():               # in the engine's precision: half precision may tip an argmax
            states.hidden = torch.cat([family.target.model(input_ids=torch.tensor([r.ids])).last_hidden_state[0]
                                       for r in requests])
        scores = score(drafter.model, drafter.ids, family.target, shard, states, batch=3)
        assert tokens_per_verification(scores, gamma) == pytest.approx(
            engine.trace.metrics()["tokens_per_verification"])


def test_the_log_says_what_an_exported_drafter_is_worth(made, family, tmp_path, name):
    export(family, made, name, tmp_path, int8=False, tell=lambda line: None)
    drafter = load_pruned(tmp_path / f"{name}.safetensors", family.target, family.vocab_size)
    held = train._fixed(made / "fixed.pt", None, family)["held"]
    shard = corpus.Shard.build([t.tokens[:t.prompt].tolist() for t in held],
                               [t.tokens[t.prompt:].tolist() for t in held],
                               [0.0] * len(held))
    scores = score(drafter.model, drafter.ids, family.target, shard, states_of(family, shard, drafter))
    last = json.loads((tmp_path / f"{name}.json").read_text())["log"][-1]
    assert last["held_out_tokens_per_verification"] == pytest.approx(tokens_per_verification(scores, 4), abs=.02)
    overlaps = [value for s in scores for value in s.overlap]
    assert last["held_out_overlap"] == pytest.approx(sum(overlaps) / len(overlaps), abs=.01)


def test_the_command_exports_any_checkpoint(made, family, tmp_path, monkeypatch, capsys):
    """Whatever it is called: a checkpoint knows its recipe."""
    monkeypatch.setattr(zoo, "load", lambda *args, **options: family)
    command = ["distill", "--export", str(tmp_path), "--out", str(made)]
    assert main([*command, "--drafter", "fed"]) == 0 and [p.stem for p in tmp_path.glob("*.safetensors")] == ["fed"]
    assert main(command) == 0 and {p.stem for p in tmp_path.glob("*.safetensors")} >= set(RECIPES)
    assert main([*command, "--drafter", "absent"]) == 2
    assert f"no checkpoint of absent in {made}" in capsys.readouterr().err


def test_a_head_is_written_for_other_libraries_too(made, family, tmp_path):
    from spin_core.zoo import speculators

    export(family, made, "head", tmp_path, speculators=True, tell=lambda line: None)
    ours = load_pruned(tmp_path / "head.safetensors", family.target, family.vocab_size)
    theirs = speculators.load(tmp_path / "head-speculators", family.target, family.vocab_size)
    assert torch.equal(ours.ids, theirs.ids)
    for (key, one), (other_key, other) in zip(sorted(ours.model.state_dict().items()),
                                              sorted(theirs.model.state_dict().items()), strict=True):
        assert key == other_key
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)         # bf16


def test_a_run_goes_on_where_it_was(copied, family, capsys):
    first = torch.load(copied / "fed.pt", weights_only=True)
    distill(family, {"fed": RECIPES["fed"]}, copied, **QUIET)
    assert torch.load(copied / "fed.pt", weights_only=True)["step"] == 24, "it had made its steps"
    distill(family, {"fed": RECIPES["fed"], "new": RECIPES["fed"]}, copied, **QUIET | {"steps": 26})
    second = torch.load(copied / "fed.pt", weights_only=True)
    assert second["step"] == 26 and second["tokens"] > first["tokens"]
    assert torch.load(copied / "new.pt", weights_only=True)["step"] == 26
    assert all(not a.equal(b) for a, b in zip(first["mean"].values(), second["mean"].values()))
    assert second["ids"].equal(first["ids"])
    starts = [json.loads(line) for line in (copied / "log.jsonl").read_text().splitlines() if '"start"' in line]
    assert starts[-1]["heads"] == {"fed": 24, "new": 0}


def test_a_run_without_end_stops_when_asked_and_takes_up_new_data(copied, family, monkeypatch):
    monkeypatch.setattr(train, "SAVE_SECONDS", 0)
    monkeypatch.setattr(train, "AHEAD", 1)
    shards, calls = corpus.paths(copied / "data"), []

    def stopped() -> bool:
        calls.append(len(calls))
        if len(calls) == 2:
            shutil.copy(shards[0], shards[0].with_name("shard-00099.safetensors"))
        return len(calls) == 6

    quiet = QUIET | {"steps": None, "answer_tokens": 0, "budget": float("inf")}
    monkeypatch.setattr(torch, "compile", lambda function: function)
    distill(family, {"fed": RECIPES["fed"]}, copied, **quiet, stopped=stopped)
    assert torch.load(copied / "fed.pt", weights_only=True)["step"] == 24 + 5
    more = json.loads((copied / "fed" / "fed.json").read_text())["log"][-1]["answer_tokens"]
    assert more > json.loads((copied / "log.jsonl").read_text().splitlines()[0])["answer_tokens"]


@pytest.mark.parametrize("change, says", [({"vocab": 20}, "vocab 30, now 20"), ({"window": 9}, "window None, now 9")])
def test_a_checkpoint_of_another_recipe_is_refused(copied, family, change, says):
    files = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=f"checkpoint of plain is of another recipe .{says}.*another --out, or delete"):
        distill(family, {"plain": replace(RECIPES["plain"], **change)}, copied, **QUIET | {"answer_tokens": 99999})
    assert files == {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}


def test_data_of_another_seed_are_refused(made, family):
    with pytest.raises(ValueError, match="data of seed 5, not 6"):
        generate(family, made / "data", 1, seed=6, tell=lambda line: None)


@pytest.mark.parametrize("option, least", [("--steps", 1), ("--shard", 2), ("--answer-tokens", 0)])
def test_numbers_that_make_no_drafter_are_refused_before_the_work(monkeypatch, tmp_path, capsys, option, least):
    monkeypatch.setattr(zoo, "load", lambda *args, **options: pytest.fail("it has begun to work"))
    out = tmp_path / "out"
    arguments = ["distill", "--drafter", "pruned-1L-4k", "--out", str(out), option, str(least - 1)]
    assert main(arguments) == 2
    assert f"{option} {least - 1}: must be at least {least}" in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize("option, value, reason", [
    ("--budget-minutes", "0", "must be a number of minutes above 0"), ("--budget-minutes", "-1", "above 0"),
    ("--budget-minutes", "nan", "above 0"), ("--budget-minutes", "inf", "above 0"),
    ("--answer-tokens", "-5", "--answer-tokens -5: must be at least 0")])
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


def test_a_damaged_shard_is_named(copied, family):
    path = corpus.paths(copied / "data")[0]
    path.write_bytes(path.read_bytes()[:100])
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
        if len(calls) == 2:
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
    for prompt, answer in zip(prompts, decoded):
        assert tiny.logits(family.target, prompt + answer)[len(prompt) - 1:-1].argmax(-1).tolist() == answer
        assert tiny.STOP not in answer[:-1] and (len(answer) == 20 or answer[-1] == tiny.STOP)


def test_batch_decoding_samples_the_law(family):
    """Two thousand first tokens against the target's distribution: a chi-square far below what a wrong temperature
    gives."""
    decoder = BatchDecoder(family.target, family.vocab_size, family.stop_ids)
    first = [answer[0] for answer in decoder([[5, 9, 11]] * 2000, [.7] * 2000, 1, torch.Generator().manual_seed(1))]
    distribution = (tiny.logits(family.target, [5, 9, 11])[-1] / .7).softmax(-1) * 2000
    seen = torch.bincount(torch.tensor(first), minlength=tiny.VOCAB)
    often = distribution > 5
    assert float(((seen - distribution) ** 2 / distribution)[often].sum()) < 2.5 * int(often.sum()) + 10


def test_chains_by_hand():
    hits = [[True, True, False, True, True, True]]
    assert chain(hits, 2) == [(2, 2), (2, 2)]               # the last token is the target's own
    assert chain(hits, 1) == [(1, 1), (1, 0), (1, 1), (0, 0)]
    assert chain([[False] * 3], 4) == [(2, 0), (1, 0), (0, 0)]
    assert chain([[True] * 5, [False] * 5], 4) == [(4, 1), (2, 1), (0, 0)]         # lost on its own states
    assert chain([[True] * 5], 4, waits=True) == [(0, 0), (3, 3)]


def test_held_out_sequences_are_not_trained_on(family, made):
    texts = train.Texts([made / "data"], family.decode)
    texts.scan()
    keys = {text.key for of in texts.by_kind.values() for text in of}
    shards = [corpus.read(path) for path in corpus.paths(made / "data")]
    held = {f"data/shard-{number:05d}/{row}" for number, shard in enumerate(shards) for row in range(shard.held_out)}
    assert held and not held & keys and {text.key for text in texts.held} <= held
    assert len(keys) + len(held) == sum(len(shard.lengths) for shard in shards)


def test_draft_vocabulary_ranks_answers_and_keeps_stops(made, family):
    texts = train.Texts([made / "data"], family.decode)
    texts.scan()
    answers = torch.cat([t.tokens[t.prompt:] for of in texts.by_kind.values() for t in of])
    ids = torch.load(made / "plain.pt", weights_only=True)["ids"]
    counts = torch.bincount(answers.long(), minlength=tiny.VOCAB)
    assert set(family.stop_ids) <= set(ids.tolist()) and len(ids) == 30
    others = torch.ones(tiny.VOCAB, dtype=torch.bool).index_fill(0, ids, False)
    own = torch.tensor([i for i in ids.tolist() if i not in family.stop_ids])
    assert counts[own].min() >= counts[others].max()


def test_prompts_are_seeded_and_varied():
    one, two, other = PromptWriter(1), PromptWriter(1), PromptWriter(2)
    texts = [one.fresh()[0]["content"] for _ in range(300)]
    assert texts == [two.fresh()[0]["content"] for _ in range(300)] != [other.fresh()[0]["content"] for _ in range(300)]
    assert len(set(texts)) > 270 and not any("{" in t and "}" in t for t in texts)
    assert "passage" in one.about("passage")[0]["content"]
    assert [m["role"] for m in one.second_turn(one.fresh(), "answer")] == ["user", "assistant", "user"]


def test_a_table_is_made_from_the_same_data_without_the_held_out_part(made, family):
    """Asked for alone, where the data are there already."""
    shards = [corpus.read(path) for path in corpus.paths(made / "data")]
    distill(family, {"habits": TableRecipe(50)}, made, budget=60, answer_tokens=0, seed=5, tell=lambda line: None)
    assert corpus.paths(made / "data") == [made / "data" / f"shard-{n:05d}.safetensors" for n in range(len(shards))]
    table = load_table(made / "habits" / "habits.safetensors", family.vocab_size)
    expected = make_table([s.take(torch.arange(s.held_out, len(s.lengths))) for s in shards], family.vocab_size, 50)
    assert torch.equal(table.contexts, expected["contexts"]) and len(table.contexts) == 50
    assert torch.equal(table.followers, expected["followers"])


def test_without_data_there_is_nothing_to_make_a_table_from(family, tmp_path):
    with pytest.raises(ValueError, match=f"no data in {tmp_path}/data: --answer-tokens"):
        distill(family, {"habits": TableRecipe(50)}, tmp_path, budget=60, answer_tokens=0)


def test_every_rung_is_trained_and_the_ladder_told(family, tmp_path):
    rungs = {rung_name(rung): replace(recipe, vocab=30, depth=min(recipe.depth, 2), window=recipe.window and 10)
             for rung, recipe in LADDER.items()}
    distill(family, rungs, tmp_path, **QUIET | {"steps": 2, "evaluations": 1, "answer_tokens": 1500})
    rows = bench.ladder(tmp_path)
    assert [row["rung"] for row in rows] == list(LADDER) and all(row["tokens_per_verification"] >= 1 for row in rows)
    assert [row["published"] for row in rows] == [ABLATION[rung][0] for rung in LADDER]
    log = json.loads((tmp_path / "spire" / "spire.json").read_text())
    assert log["recipe"]["carry"] == "mix" and log["recipe"]["window"] == 10
    (tmp_path / "spire" / "spire.json").write_text(json.dumps(log | {"steps": 4}))
    with pytest.raises(ValueError, match="cannot be compared"):
        bench.ladder(tmp_path)
    with pytest.raises(ValueError, match="no trained rung.*--drafter spire "):
        bench.ladder(tmp_path / "nothing")


@pytest.mark.parametrize("change, says", [({"window": "x"}, "window 'x'"), ({"carry": "last"}, "'mix' and carry"),
                                          ({"carry": "all"}, "'mix' and carry")])
def test_a_file_that_contradicts_itself_is_refused(made, family, tmp_path, change, says):
    facts = {"window": "10", "carry": "mix", "layers_read": "last"} | change
    save_file(load_file(made / "spire" / "spire.safetensors"), tmp_path / "b.safetensors", facts)
    with pytest.raises(ValueError, match=says):
        load_pruned(tmp_path / "b.safetensors", family.target, family.vocab_size)
