"""The common form of the benchmarks, and the peers' comparison on a tiny family."""

import json
from argparse import ArgumentParser
from types import SimpleNamespace

import pytest
import torch

from spin_core import bench
from spin_core.bench import Bar, Report, peers
from spin_core.engine import Engine
from tests import tiny


@pytest.mark.parametrize("value, target, holds", [(1.2, ">= 1.1", True), (1.0, ">= 1.1", False), (1.1, ">= 1.1", True),
                                                  (1.2, "<= 1.35", True), (1.4, "<= 1.35", False), (None, ">= 1", None)])
def test_a_bar_compares_its_value_with_its_target(value, target, holds):
    assert Bar("a", value, target).holds is holds


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


@pytest.fixture
def family():
    family = tiny.TinyFamily(tiny.family(torch.float32).target, tiny.family(torch.float32).drafters)
    family.device = "cpu"
    return family


def test_peers_decode_the_same_text(family):
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12, 13]]
    ours = peers._ours(Engine(family, "near", 3, max_batch=2), 12)(prompts)
    assert ours == peers._generate(family, family.target, 1, 12)(prompts)
    assert ours == peers._generate(family, family.target, 2, 12)(prompts)       # left-padded
    for name in ("near", "subset"):
        assistant = peers._assistant(family.drafters[name], family.target)
        assert ours == peers._assisted(family, family.target, assistant, 3, 12)(prompts)


def test_an_assistant_drafts_over_the_targets_ids(family):
    drafter = family.drafters["subset"]
    logits = peers._assistant(drafter, family.target)(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1]
    assert torch.isfinite(logits).nonzero().flatten().tolist() == drafter.ids.tolist()
    narrow = drafter.model(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1]
    assert torch.equal(logits[drafter.ids], narrow)


def test_a_peer_that_fails_is_left_out_and_named():
    def broken(prompts):
        raise RuntimeError("no kernel")

    notes = []
    contenders = [peers.Contender(peers.BASELINE, lambda prompts: [[1, 2]]), peers.Contender("odd", broken)]
    peers._race(contenders, [[1]], 2, notes)
    assert [c.name for c in contenders] == [peers.BASELINE] and len(contenders[0].rates) == 2
    assert "odd did not run here: RuntimeError: no kernel" in notes[0]


def test_bars_compare_the_same_drafter_at_its_best_gamma():
    def contender(name, rate, drafter=None, gamma=None, ours=False):
        return peers.Contender(name, None, drafter, gamma, object() if ours else None, [rate])

    plain, packed = "transformers assisted", "transformers assisted, packed products"
    bars = peers._bars([contender(peers.BASELINE, 10.0), contender(plain, 8.0, "a", 2), contender(plain, 16.0, "a", 4),
                        contender(packed, 20.0, "a", 2), contender("spin_core", 12.0, "none", 0, True),
                        contender("spin_core", 24.0, "a", 2, True), contender("spin_core", 18.0, "a", 4, True),
                        contender("spin_core", 30.0, "fed", 2, True)], 1)
    assert [bar.value for bar in bars] == [1.2, 3.0, 2.5, 1.5, 1.2]
