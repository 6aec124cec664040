"""The paper's setting, modelled: the ladder's rungs do what they say, and the published numbers are not what
comes out."""

from __future__ import annotations

import numpy as np
import pytest

from spin_core.lessons import system as lesson
from spin_core.plots import system as plots
from spin_core.simulate import paper
from spin_core.widgets.system import picture

FEW = 16


@pytest.fixture(scope="module")
def rungs():
    return {name: paper.rung(name, "CP", "LLaMA-7B", requests=FEW) for name in paper.RUNGS}


def test_every_rung_serves_the_same_texts(rungs):
    assert len({run.tokens for run in rungs.values()}) == 1
    assert list(rungs["vanilla"].served) == [paper.VANILLA]
    assert len(rungs["+ selection"].served) > 3
    assert rungs["+ decomposition"].padding < rungs["+ selection"].padding
    assert rungs["+ pipeline"].decisions and not rungs["+ decomposition"].decisions


def test_the_published_latency_is_not_that_of_a_v100():
    """529 and 335 ms at batch 16; the model has 26 and 21, the floor is 15. We do not tune the gap away."""
    got = paper.verification_latency("Alpaca", (16,))
    assert 0.015 < got["decomposed"][0] < got["padded, in place"][0] < got["padded, gathered"][0] < 0.035
    assert paper.LATENCY["padded"] > 10 * got["padded, gathered"][0]


def test_padded_memory_runs_out_first():
    held = paper.verification_memory("Alpaca", (4, 32, 64, 96))
    padded, pieces = np.array(held["padded"]), np.array(held["decomposed"])
    assert (padded > pieces).all() and padded[-1] > held["card"][0] > pieces[-1]


def test_micro_batches_pay_where_drafting_is_worth_hiding():
    gain = {policy: paper.micro_batch_gains("Alpaca", (2,), policy=policy, batch=32, requests=64)[2]
            for policy in ("68M", "1.4B")}
    assert gain["1.4B"] > 1.05 > gain["68M"]


def test_supposed_fixed_costs_decide_whether_more_is_worse():
    stage = paper.stages("Alpaca", "1.4B", requests=FEW)
    free, bound = (paper.supposed_gains(stage, fixed, (2, 4, 8)) for fixed in (0.0, 0.9))
    assert free[8] == pytest.approx(1 + stage["draft"] / stage["verify"], rel=0.01)
    assert bound[8] < bound[4] < bound[2] < 1
    assert 0.9 < stage["verify fixed"] <= 1


def test_the_heuristic_is_compared_with_hindsight():
    case = paper.heuristic_case("Alpaca", "68M", 8, (1, 2), requests=FEW)
    assert case["best"] == case["chosen"] == 1 and case["right"] == 1 and 0.5 < case["share"] <= 1


def test_figures_are_drawn_from_numbers():
    systems = dict(zip(plots.SYSTEMS, (1.0, 2.0, 3.0)))
    overall = plots.overall_goodput({"7B": {"A": systems, "B": systems}}, 2.28)
    assert [t.get_text() for t in overall.axes[0].texts] == ["3.00×", "3.00×"]
    ladder = plots.ablation({"CP": {"+ x": 1.1}}, {"+ x": 1.5}, "CP", {"ours": 0.02}, {"theirs": 0.5})
    assert [t.get_text() for t in ladder.axes[1].texts] == ["20 ms", "500 ms"]
    gains = plots.microbatches({"a": {1: 1, 2: 1.2}}, {"b": {1: 1, 2: 1.8}}, {4: 1.29}, {"CP": 3})
    assert gains.axes[0].get_ylim()[1] > 1.8
    case = {"name": "n", "best": 2, "chosen": 1, "right": 0.9, "share": 0.8}
    assert [t.get_text() for t in plots.microbatch_heuristic([case]).axes[1].texts] == ["0.90", "0.80"]


@pytest.mark.parametrize("policy, groups", [("spin", 2), ("none", 1), ("68M", 8)])
def test_the_dashboard_draws_any_setting(policy, groups):
    figure = picture("CP", policy, "padded", "H100-80GB", 4, groups, requests=6)
    assert "tokens/s (modelled)" in str(figure.get_suptitle()) + "".join(ax.get_title(loc) for ax in figure.axes
                                                                        for loc in ("left", "center"))


def test_exercises():
    assert lesson.check_floor(lambda n, size, bandwidth: n * size / bandwidth).status == "right"
    assert lesson.check_floor(lambda n, size, bandwidth: n / bandwidth).status == "wrong"
    assert lesson.check_floor(lambda *_: None).status == "open"
    assert lesson.check_floor(lambda n: n).status == "wrong"
    assert lesson.check_ridge(lambda arithmetic, stream, size: arithmetic * size / 2 / stream).status == "right"
    assert lesson.check_ridge(lambda arithmetic, stream, size: arithmetic / stream).status == "wrong"
