"""The live selection benchmark on the tiny family: who takes part, and what is computed from the rounds."""

from __future__ import annotations

import pytest
import tiny
import torch

from spin_core.lab.bench import select_live as bench


@pytest.fixture(scope="module")
def report():
    prompts = [[i, 4, i, 5] * (i % 3 + 1) for i in range(6)]
    return bench.compare(tiny.family(torch.float32), prompts, ["near", "ngram", "ngram+near"], ["spin", "spin-full"],
                         [2, 4], 3,
                      2, 12)


def test_everybody_serves_the_same_texts(report):
    names = [row["contender"] for row in report.rows]
    assert names == ["none", *(a for a in ("near", "ngram", "ngram+near") for _ in range(2)), "policy spin",
                     "policy spin-full", "policy spin-full, waiting"]
    assert all(row["same_text"] == 1 and row["tokens_per_s"] > 0 for row in report.rows)
    rounds = [row["rounds"] for row in report.rows]
    assert rounds[0] == 2 and sorted(rounds[1:7]) == [1, 1, 1, 2, 2, 2] and rounds[7:] == [2, 2, 2]
    assert report.rows[0]["vs_plain"] == 1 and max(r["vs_best_fixed"] for r in report.rows[:7]) >= 1
    assert report.rows[0]["tokens_per_verification"] == 1


def test_the_bars_are_the_rows(report):
    bars = {bar.name: bar for bar in report.bars}
    rows = {row["contender"]: row for row in report.rows}
    best = next(bar for name, bar in bars.items() if "over the best fixed" in name)
    assert best.value == rows["policy spin-full"]["vs_best_fixed"] and best.target == ">= 1.0"
    for name in ("spin", "spin-full", "spin-full, waiting"):
        assert bars[f"policy {name}: selection and matching, share of a step"].value == \
            rows[f"policy {name}"]["select_share"]
        assert 0 < rows[f"policy {name}"]["select_share"] < 1


def test_the_pool_is_the_family_lookup_and_their_composition():
    family = tiny.family()
    assert bench.pool(family) == [*family.drafters, "ngram", "ngram+near"]
    assert bench.pool(tiny.TinyFamily(family.target, {})) == ["ngram"]
