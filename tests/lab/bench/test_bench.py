"""The common form of the benchmarks, and the peers' comparison on a tiny family."""

import json
import sys
from argparse import ArgumentParser, Namespace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from spin_core import zoo
from spin_core.lab import bench
from spin_core.lab.results import figures
from spin_core.__main__ import main
from spin_core.lab.bench import Bar, Report
from spin_core.lab.bench import contenders, peers
from spin_core.lab.bench.rounds import Contender, in_turns, interval, ratio
from spin_core.engine import Engine
from spin_core.files import save_json
from spin_core.request import SamplingParams
from tests import tiny

GREEDY = SamplingParams(max_new_tokens=6)


@pytest.mark.parametrize("value, target, holds", [(1.2, ">= 1.1", True), (1.0, ">= 1.1", False), (1.1, ">= 1.1", True),
                                                  (1.2, "<= 1.35", True), (1.4, "<= 1.35", False),
                                                   (None, ">= 1", None)])
def test_a_bar_compares_its_value_with_its_target(value, target, holds):
    assert Bar("a", value, target).holds is holds


def test_proportion_interval_covers_the_truth_about_95_times_in_100():
    truth, trials = 0.3, 40
    hits = np.random.default_rng(1).binomial(trials, truth, 4000)
    low, high = bench.proportion_interval(hits, trials)
    assert 0.93 < np.mean((low <= truth) & (truth <= high)) < 0.97
    assert [float(x) for x in bench.proportion_interval(0, 0)] == [0, 1]
    low, high = bench.proportion_interval([0, 10], [10, 10])
    assert low[0] == pytest.approx(0, abs=1e-12) and high[1] == pytest.approx(1) and high[0] < 0.35


def test_a_report_prints_a_table_and_then_its_bars(capsys):
    Report("x", [{"a": 1, "b": 2.5}, {"a": 3}], [Bar("ratio", 0.5, ">= 1.0"), Bar("other", None, ">= 1.0")]).print()
    table, *rest = capsys.readouterr().out.split("bar: ")
    assert [line.split() for line in table.splitlines()] == [["a", "b"], ["1", "2.5"], ["3", "-"]]
    assert "MISSED" in rest[0] and "not measured" in rest[1]


def test_the_json_names_machine_versions_and_bars(monkeypatch, tmp_path, capsys):
    report = Report("x", [{"a": 1, "gap": float("inf")}], [Bar("ratio", 2.0, ">= 1.0")])
    monkeypatch.setattr(bench, "module", lambda name: SimpleNamespace(run=lambda args: report))
    out = tmp_path / "deep" / "x.json"
    bench.run("x", SimpleNamespace(json=str(out)))
    written = json.loads(out.read_text())
    assert written["bars"] == [{"name": "ratio", "value": 2.0, "target": ">= 1.0", "holds": True}]
    assert written["rows"] == [{"a": 1, "gap": None}] and written["versions"]["torch"] == torch.__version__
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("name", bench.NAMES)
def test_every_benchmark_has_the_common_form(name):
    module, parser = bench.module(name), ArgumentParser()
    module.add_arguments(parser)
    parser.parse_args([])
    assert module.DESCRIPTION and callable(module.run)


@pytest.mark.parametrize("command, option", [
    ("simulate --repeats 0", "--repeats"), ("simulate --arrivals bursty --requests 0", "--requests"),
    ("simulate --validate --gamma 2 0", "--gamma"), ("select --seeds 0", "--seeds"), ("select --batch -1", "--batch"),
    ("passes --repeats 0", "--repeats"),
    ("products --context 0", "--context"), ("verify --vocab 300 0", "--vocab"), ("verify --batch 0", "--batch"),
    ("verify-attention --repeats 1", "--repeats"), ("pipeline --rounds 0", "--rounds"),
    ("pipeline --counts 0", "--counts"), ("peers --max-new-tokens 0", "--max-new-tokens"),
    ("equality --prompts 0", "--prompts"), ("trees --width 0", "--width"), ("drafters --limit 0", "--limit")])
def test_counts_that_make_no_sense_are_refused(command, option, capsys):
    with pytest.raises(SystemExit) as end:
        main(["bench", *command.split()])
    least = 2 if command.startswith("verify-attention") else 1
    error = capsys.readouterr().err
    assert end.value.code == 2 and option in error and f"is too small: at least {least} is needed" in error


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0"])
@pytest.mark.parametrize("option", ["gpu --budget-seconds", "peers --budget-seconds", "simulate --rate",
                                    "peers --temperature", "load --compare", "equality --gamma"])
def test_times_rates_and_the_like_are_numbers_that_can_be(option, value, capsys):
    """A budget of NaN seconds never ended."""
    if value == "0" and option.split()[1] in ("--temperature", "--compare", "--gamma"):
        return
    with pytest.raises(SystemExit) as end:
        main(["bench", *f"{option}={value}".split()])
    error = capsys.readouterr().err
    assert end.value.code == 2 and f"argument {option.split()[1]}: " in error


@pytest.mark.parametrize("text", ["pruned-2L-8k", "pruned-2L-8k:", "ngram:0", "ngram:x", ":4"])
def test_a_fixed_drafter_without_its_gamma_is_told_the_form(text, capsys):
    with pytest.raises(SystemExit):
        main(["bench", "peers", "--fixed", text])
    assert f"argument --fixed: {text!r} is neither default nor all nor NAME:GAMMA" in \
        capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("command", ["select --record"])
def test_what_cannot_be_written_is_noticed_before_the_work(command, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(zoo, "load", lambda *args, **options: pytest.fail("it has begun to work"))
    (tmp_path / "file").touch()
    assert main(["bench", *command.split(), str(tmp_path / "file" / "new")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_an_empty_name_of_a_file_is_refused_before_the_work(monkeypatch, capsys):
    monkeypatch.setattr("spin_core.lab.bench.run", lambda *args: pytest.fail("it has begun to work"))
    assert main(["bench", "products", "--json", ""]) == 2
    assert capsys.readouterr().err == "error: an empty path names no file\n"


@pytest.fixture
def family():
    family = tiny.TinyFamily(tiny.family(torch.float32).target, tiny.family(torch.float32).drafters)
    family.device = "cpu"
    return family


def test_peers_decode_the_same_text(family):
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12, 13]]
    engines = [Engine(family, "near", 3, max_batch=2), Engine(family, "subset", 2, max_batch=1, pipeline=2)]
    served = in_turns(engines, prompts, SamplingParams(max_new_tokens=12))
    ours, again = ([r.output_ids for r in requests] for requests, _ in served)
    assert ours == again and all(seconds > 0 for _, seconds in served)
    assert ours == contenders.generate(family, family.target, 1, 12)(prompts)
    assert ours == contenders.generate(family, family.target, 2, 12)(prompts)       # left-padded
    for name in ("near", "subset"):
        assistant = contenders.assistant(family.drafters[name], family.target)
        assert ours == contenders.assisted(family, family.target, assistant, 3, 12)(prompts)


def test_flashspec_decodes_the_same_text(family):
    pytest.importorskip("flashspec", reason=contenders.INSTALL)
    prompts, assistant = [[5, 6, 7], [8, 9, 10, 11]], contenders.assistant(family.drafters["near"], family.target)
    stops = contenders.generate(family, family.target, 1, 40)(prompts)
    assert contenders.flashspec(family, assistant, 40)(prompts) == stops and any(len(text) < 40 for text in stops)
    assert all(contenders.flashspec(family, assistant, 8, 1.0)(prompts))


def test_flashspec_that_is_missing_says_how_to_get_it(family, monkeypatch):
    monkeypatch.setitem(sys.modules, "flashspec", None)
    with pytest.raises(ImportError, match=r"pip install -e '.\[peers\]' brings it"):
        contenders.flashspec(family, None, 8)([[5, 6]])


def test_an_assistant_drafts_over_the_targets_ids(family):
    drafter = family.drafters["subset"]
    logits = contenders.assistant(drafter, family.target)(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1]
    assert torch.isfinite(logits).nonzero().flatten().tolist() == drafter.ids.tolist()
    narrow = drafter.model(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1]
    assert torch.equal(logits[drafter.ids], narrow)


def contender(name, rate, drafter=None, gamma=None, *, ours=False, rounds=2, only=None):
    """Decodes 100 tokens of each of two workloads at that rate, half of it in the second."""
    cells = {(n, w): (100, 100 / rate / (1 + (w == "b"))) for n in range(rounds) for w in "ab" if only in (None, w)}
    return Contender(name, None, drafter, gamma, object() if ours else None, only, cells)


def test_a_peer_that_fails_is_left_out_and_named():
    def broken(prompts):
        raise RuntimeError("no kernel")

    notes = []
    here = [Contender(peers.BASELINE, lambda prompts: [[1, 2]] * len(prompts)), Contender("odd", broken),
            Contender("slow", lambda prompts: [[1]], only="b")]
    # one round, however little time there is
    peers.compare(here, {"a": [[1]], "b": [[2]]}, [[3]], GREEDY, 0.0, notes)
    assert [c.name for c in here] == [peers.BASELINE, "slow"]
    assert set(here[0].cells) == {(0, "a"), (0, "b")} and set(here[1].cells) == {(0, "b")}
    assert "odd did not run here: RuntimeError: no kernel" in notes[0]


def test_a_ratio_compares_what_both_have_decoded():
    one, other = contender("x", 10.0), contender("y", 30.0, rounds=1, only="b")
    assert ratio(other, one) == pytest.approx(3.0) and ratio(one, one) == 1.0
    assert ratio(one, contender("z", 1.0, rounds=0)) is None


def test_bars_are_those_of_the_whole_system():
    here = [contender(peers.BASELINE, 10.0), contender(peers.ASSISTED, 8.0, "a", 2),
            contender(peers.PLAIN, 16.0, "none", 0),
            contender(peers.FIXED, 24.0, "a", 2), contender(peers.FIXED, 20.0, "b", 4), contender(peers.SPIN, 24.0)]
    found = {bar.name: bar for bar in peers.bars(here, 1, 0.0)}
    assert {name: round(bar.value, 3) for name, bar in found.items()} == {
        "SPIN over our plain decoding, batch 1, greedy": 1.5, "SPIN over transformers generate, batch 1, greedy": 2.4,
        "SPIN over the best fixed drafter (a, gamma 2), batch 1, greedy": 1.0,
        "SPIN over transformers assisted, batch 1, greedy": 3.0,
        "ours over transformers assisted, both with a, gamma 2, batch 1, greedy": 3.0}
    assert all(bar.holds for bar in found.values())
    here[-1] = contender(peers.SPIN, 15.0)
    assert [bar.holds for bar in peers.bars(here, 1, 0.0)] == [False, False, False, True, True]
    assert len(peers.bars(here, 1, 1.0)) == 1 and [b.target for b in peers.bars(here, 8, 0.0)][1] == ">= 1.3"


def test_the_gain_over_plain_decoding_has_an_interval_over_the_rounds():
    plain, spin = (contender(name, 10.0, rounds=5) for name in (peers.PLAIN, peers.SPIN))
    for number, seconds in enumerate((9.0, 9.5, 10.0, 10.5, 11.0)):
        spin.cells[number, "a"] = spin.cells[number, "b"] = 100, seconds / 1.5 * plain.cells[0, "a"][1] / 10
    assert [bar.name for bar in peers.bars([plain, spin], 8, 0.0)] == ["SPIN over our plain decoding, batch 8, greedy"]
    plain.texts = spin.texts = {"a": [[1]], "b": [[2]]}
    row = peers.row(spin, plain, plain, 0.0)
    assert row["over_plain_low"] < row["over_plain"] < row["over_plain_high"] and "vs_generate" not in row
    assert .5 < row["over_plain_low"] and row["over_plain_high"] < 1.5 and interval([1.0]) == (None, None)
    low, high = interval([.9, 1.0, 1.1])
    assert (low, high) == (pytest.approx(1 - 4.3027 * .1 / 3 ** .5, abs=1e-4), pytest.approx(2 - low))


class Clock:
    """Decodes until its time has come."""

    def __init__(self, calls: int, error: type[BaseException]) -> None:
        self.calls, self.error = calls, error

    def __call__(self, prompts):
        self.calls -= 1
        if self.calls < 0:
            raise self.error("enough")
        return [[1, 2]] * len(prompts)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_round_that_breaks_off_leaves_those_before_it(error):
    here = [Contender(peers.BASELINE, Clock(6, error))]       # a warm-up, two rounds and half of the third
    with pytest.raises(error, match="enough"):
        peers.compare(here, {"a": [[1]], "b": [[2]]}, [[3]], GREEDY, float("inf"), [])
    assert list(here[0].cells) == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


def run_to(breaks: list[tuple[int, type[BaseException]]], monkeypatch, json=None, more=()) -> Report:
    """A run of three cases; those that break do so after so many whole rounds."""
    def compare(here, prompts, before, params, stop, notes, least):
        rounds, error = todo.pop(0)
        here[:] = [contender(name, 10.0, rounds=rounds, ours=False)
                   for name in (peers.BASELINE, peers.PLAIN, peers.FIXED, peers.SPIN)]
        for c in here:
            c.texts = {"a": [[1]], "b": [[2]]}
        if error:
            raise error("enough")

    todo = list(breaks)
    monkeypatch.setattr("spin_core.zoo.load", lambda *_, **__: SimpleNamespace(encode=lambda messages: [1]))
    monkeypatch.setattr(peers, "load_workload", lambda *_, limit=1: [SimpleNamespace(messages="x")] * limit)
    monkeypatch.setattr(peers, "field_of", lambda *_: [])
    monkeypatch.setattr(peers, "compare", compare)
    monkeypatch.setattr(peers, "ceilings", lambda batch: [{"contender": "ceiling"}])
    parser = ArgumentParser()
    peers.add_arguments(parser)
    arguments = ["--batch", "1", "2", "3", "--temperature", "0", "--waves", "1", "--workloads", "a", "b", *more]
    return peers.run(parser.parse_args(arguments, Namespace(json=json)))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_run_that_breaks_off_keeps_what_it_has(error, monkeypatch):
    report = run_to([(2, None), (0, error)], monkeypatch)
    assert {row["batch"] for row in report.rows} == {1}
    assert report.notes[1] == f"broke off: {error.__name__}: enough" and report.bars[-1].holds is False
    report = run_to([(2, None), (1, error)], monkeypatch)
    assert {row["batch"] for row in report.rows} == {1, 2}
    assert report.notes[1] == "batch 2, greedy: 1 rounds of 4 prompts, at most 32 tokens each"


@pytest.mark.parametrize("killed", [True, False])
def test_a_run_goes_on_behind_the_cases_that_are_stored(killed, monkeypatch, tmp_path):
    """Killed it has stored its whole cases, broken off half of one more."""
    path = tmp_path / "peers.json"
    report = run_to([(2, None), (1, KeyboardInterrupt)], monkeypatch, path)
    if not killed:
        save_json(path, report.as_dict())
    report = run_to([(3, None)] * 2, monkeypatch, path, ["--resume"])
    assert [row["batch"] for row in report.rows] == [1] * 4 + [2] * 4 + [3] * 4 + [1, 2, 3]
    assert [note.partition(" prompts")[0] for note in report.notes[:3]] == [
        "batch 1, greedy: 2 rounds of 4", "batch 2, greedy: 3 rounds of 4", "batch 3, greedy: 3 rounds of 6"]
    assert [bar.name for bar in report.bars] == [bar.name for bar in run_to([(3, None)] * 3, monkeypatch).bars]


def test_a_run_to_the_end_ends_with_the_ceilings(monkeypatch):
    report = run_to([(1, None)] * 3, monkeypatch)
    assert [row["contender"] for row in report.rows][-3:] == ["ceiling"] * 3
    assert not any(bar.name.startswith("runs to") for bar in report.bars)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_run_that_has_measured_nothing_raises(error, monkeypatch):
    with pytest.raises(error):
        run_to([(0, error)], monkeypatch)


def test_fixed_drafters_are_the_whole_pool(family):
    family.drafters = {name: family.drafters[name] for name in ("near", "subset")}
    names = lambda *asked: [name for name, _ in peers.singles(family, list(asked), 1)]
    assert names("default") == ["near", "subset", "ngram"]
    assert names("all") == ["near", "subset", "ngram", "ngram+near", "ngram+subset"]
    assert peers.singles(family, ["sparse:near:1/2:3", "ngram:1"], 8) == [("sparse:near:1/2", 3), ("ngram", 1)]
    assert dict(peers.singles(family, ["default"], 8))["near"] == 2, "of a drafter that was not measured"
    with pytest.raises(ValueError):
        names("near")


def test_fixed_drafters_draft_as_much_as_pays(monkeypatch, tmp_path):
    """The dear drafter less than the cheap one, and both less in a batch, where rows are dear."""
    peers.best_gamma.cache_clear()
    cheap, dear = ([peers.best_gamma(name, batch) for batch in (1, 8)] for name in ("ngram", "pruned-2L-8k"))
    assert cheap[0] > cheap[1] > dear[1] >= 1 and cheap[0] > dear[0]
    stored = {"name": "drafters", "rows": [{"workload": "chat", "drafter": "near", "best_gamma": 7},
                                           {"workload": "mix", "drafter": "near", "best_gamma": 5}]}
    monkeypatch.setattr(figures, "default_directory", lambda: tmp_path)
    (tmp_path / "data" / "card").mkdir(parents=True)
    (tmp_path / "data" / "card" / "drafters.json").write_text(json.dumps(stored))
    assert peers.best_gamma("near", 1) == 5 and peers.best_gamma("near", 8) is None


def test_everybody_takes_part_on_a_tiny_family(family):
    family.drafters = {name: family.drafters[name] for name in ("near", "subset")}
    args = SimpleNamespace(max_new_tokens=6, assistant=None, fixed=["near:2", "ngram:4"], plain=False, peer=[],
                           arms=["sparse:target:1/2", "vote", "tree:near,subset:2,1"])
    prompts = {"mix": [[5, 6, 7], [8, 9, 10, 11]]}
    for batch in (1, 2):
        notes = []
        here = peers.field_of(family, batch, 0.0, args)
        here = [c for c in here if c.name not in (peers.CONTINUOUS, peers.FLASHSPEC)]
        peers.compare(here, prompts, [[3]], GREEDY, 0.0, notes)
        plain = next(c for c in here if c.name == peers.PLAIN)
        rows = [peers.row(c, here[0], plain, 0.0) for c in here]
        assert not notes and all(row["same_text"] == 1 for row in rows)
        names = [row["contender"] for row in rows]
        assert names[-3:] == [peers.SPIN, peers.MORE, "ours, spin-full"] and (peers.ASSISTED in names) == (batch == 1)
        assert ("+ decomposition" in names) == (batch == 2)
        assert rows[-2]["drafters"] and "vote" not in rows[-3]["drafters"]
        assert f"SPIN with more arms over SPIN, batch {batch}, greedy" in [b.name for b in peers.bars(here, batch, 0.0)]
    assert peers.MORE not in [c.name for c in peers.field_of(family, 2, 1.0, args)]


def test_ceilings_are_above_what_is_below_them():
    request, step, exact = peers.ceilings(8, requests=8)
    assert 1 < request["vs_plain"] < step["vs_plain"] < exact["vs_plain"]
