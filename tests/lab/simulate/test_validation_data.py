"""What ``bench simulate --validate --json figures/data/validation.json`` recorded: the simulator's clock is right."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from spin_core.lab.results import figures

RECORDED = sorted((figures.default_directory() / "data").glob("**/validation.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
def test_simulated_goodput_is_within_15_percent_of_measured(path):
    report = json.loads(path.read_text("utf-8"))
    grid = [row for row in report["rows"] if "ratio" in row]
    settings = defaultdict(set)
    for row in grid:
        assert row["ratio"] == pytest.approx(row["simulated"] / row["measured"])
        assert 0.85 <= row["ratio"] <= 1.15, row
        for what in ("batch", "gamma", "drafter"):
            settings[what].add(row[what])
    assert len(grid) >= 12 and all(len(values) >= 2 for values in settings.values()), "a grid, not a point"
    if roofline := [row["roofline_ratio"] for row in grid if "roofline" in row]:        # reported, whatever it is
        assert roofline == pytest.approx([row["roofline"] / row["measured"] for row in grid])
        error, = (bar["value"] for bar in report["bars"] if "roofline, largest" in bar["name"])
        assert error == pytest.approx(max(abs(ratio - 1) for ratio in roofline))
    factors = {row["model"]: row["efficiency_factor"] for row in report["rows"] if "efficiency_factor" in row}
    assert set(factors) == settings["drafter"] | {"target"} and all(0.3 < f < 3 for f in factors.values())
    assert report["cpu"] and report["versions"]["torch"] and report["commit"]
