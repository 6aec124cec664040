"""The trees' benchmark on the tiny family: its parts, and what is computed from them."""

from __future__ import annotations

from argparse import Namespace

import pytest
import tiny

from spin_core.lab.bench import trees as bench
from spin_core.engine import Engine
from spin_core.lab.lessons.l8_token_trees import measure as trees
from spin_core.request import SamplingParams

PROMPTS = {name: [[3 * i + j + 1, 4, i + 1, 5] for i in range(2)] for j, name in enumerate(bench.WORKLOADS)}


def args(**changes) -> Namespace:
    return Namespace(**dict(max_new_tokens=8, drafters=["near", "subset"], width=[1, 3], batch=[1, 3],
                            only=list(bench.PARTS)) | changes)


@pytest.fixture(scope="module")
def report():
    return bench.measure(Engine(tiny.family(), "none", max_batch=4, max_len=60), PROMPTS, args())


def test_every_part_has_its_rows(report):
    count = {}
    for row in report.rows:
        count[row["part"]] = count.get(row["part"], 0) + 1
    assert count == {"distance from p": 10, "1: token among first k": 20, "2: tau by width": 4,
                     "3: tau by rule": 4, "merged trees 2,1,1": 9,
                     "batch 1, equal depth": 2, "best shape of 6 nodes": 3, "best shape of 14 nodes": 2,
                     "map: ms per token": 4}
    assert all(row["measured"] > 0 for row in report.rows if not row["part"].startswith("distance"))
    assert {row["published"] for row in report.rows if row["part"].startswith("2")} == {2.95, 1.79, None}


def test_match_rates_rise_with_k_and_bars_are_the_rows(report):
    for decoding in ("greedy", "sampled"):
        for name in ("near", "subset"):
            rates = [r["measured"] for r in report.rows if r["part"].startswith("1") and r["decoding"] == decoding and
                     r["drafter"] == name]
            assert rates == sorted(rates) and rates[-1] <= 1
    merged = {(r["at"], r["drafter"]): r["measured"] for r in report.rows if r["part"].startswith("merged")}
    worst = min(merged[w, "near,subset"] / max(merged[w, "near"], merged[w, "subset"]) for w in PROMPTS)
    assert report.bars[2].value == pytest.approx(worst) and len(report.bars) == 4
    for row in report.rows:
        if row["part"].startswith(("1:", "2:")):
            assert row["low"] <= row["measured"] <= row["high"]
    assert report.bars[0].holds and report.bars[1].holds


def test_an_estimate_is_the_ratio_of_sums_with_an_interval_over_prompts():
    assert trees.estimate([3, 3], [2, 2]) == (1.5, 1.5, 1.5) and trees.estimate([3], [2]) == (1.5, None, None)
    value, low, high = trees.estimate([1, 3], [2, 2])       # by hand: residuals -1 and 1, t(1) = 12.706
    assert value == 1 and low == pytest.approx(2 - high)
    assert high - 1 == pytest.approx(12.706 * (2 * 2) ** .5 / 4, rel=1e-4)


def test_ranks_are_those_of_the_drafters_own_scores():
    engine = Engine(tiny.family(), "none", max_batch=2, max_len=60)
    requests = engine.generate([[5, 9, 2], [1] * 6], SamplingParams(max_new_tokens=9))
    for name in ("near", "subset"):
        source = engine.family.drafters[name]
        expected = []
        for request in requests:
            scores = tiny.logits(source.model, request.ids)
            for at in range(len(request.prompt_ids), request.length):
                token = request.ids[at]
                if source.ids is not None:
                    token = source.ids.tolist().index(token) if token in source.ids else None
                expected.append(trees.NEVER if token is None else int((scores[at - 1] > scores[at - 1][token]).sum()))
        assert trees.ranks(engine, name, requests) == expected
    assert trees.ranks(engine, "same", requests) == [0] * sum(len(r.output_ids) for r in requests)
    with pytest.raises(ValueError, match="'ngram' has no scores"):
        trees.ranks(engine, "ngram", requests)
    assert not any(engine.target.cache.lengths)


def test_the_map_repeats_prompts_and_says_when_texts_are_too_short():
    few = args(only=["map"], batch=[16], width=[1])
    engine = Engine(tiny.family(), "none", max_batch=8)
    assert any("batch 16" in str(row["at"]) for row in bench.measure(engine, PROMPTS, few).rows)
    with pytest.raises(ValueError, match="allow more new tokens"):
        bench.measure(engine, PROMPTS, args(only=["map"], batch=[2], width=[1], max_new_tokens=1))
