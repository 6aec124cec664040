"""The benchmark on a small made-up recording: rows for all policies, bars that can fail."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spin_core.lab import bench
from spin_core.lab.bench import select
from spin_core.lab.simulate.synthetic import synthetic


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "r.npz"
    distributions = {"x": {"a": .8, "b": .3}, "y": {"a": .3, "b": .8}}
    synthetic(distributions, {"a": .05, "b": .05}, ["x", "y"] * 8, tokens=30).save(path)
    return select.run(SimpleNamespace(record=None, recording=str(path), seeds=2, batch=4, sweep=False, time=False))


def test_every_policy_has_its_row_under_both_costs(report):
    for costs in select.COSTS:
        rows = {r["policy"]: r for r in report.rows if r["costs"] == costs}
        assert {*select.BANDITS, "fixed:a", "fixed:b", "none", "oracle-request", "oracle-step"} <= set(rows)
        assert rows["oracle-request"]["goodput"] >= rows["fixed:a"]["goodput"]
        assert rows["oracle-length"]["goodput"] >= rows["oracle-step"]["goodput"] * .95
        assert 0 < rows["random"]["share_of_oracle"] < 1


def test_bars_name_what_was_promised(report):
    names = [bar.name for bar in report.bars]
    assert any("spin-full, share of oracle-request" in n for n in names)
    assert any("batch 256" in n for n in names)
    assert all(bar.value is not None for bar in report.bars)
    assert "select" in bench.NAMES
