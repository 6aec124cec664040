"""The model of how drafts survive, and the budget that rests on it."""

from __future__ import annotations

import numpy as np
import pytest

from spin_core.select import Outcome, RequestView, make
from spin_core.lab.simulate.recording import Passes
from spin_core.select.schedule import Epochs
from spin_core.lab.rivals.survival import Survival


def teach(survival: Survival, chance, rounds: int = 3000, gamma: int = 4, seed: int = 0) -> None:
    """Drafts of requests 0, 1, ... with acceptance ``chance[request]``, by arm 0."""
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        accepted = np.cumprod(rng.random((len(chance), gamma)) < np.array(chance)[:, None], 1).sum(1)
        survival.draft(range(len(chance)), np.zeros(len(chance), int), np.full(len(chance), gamma), accepted)


def test_hazards_come_to_the_truth_and_requests_to_themselves():
    survival = Survival(1, 4, kappa=8, memory=1e6)
    teach(survival, [.7] * 10, rounds=500)
    np.testing.assert_allclose(survival.curves(survival.frailty(survival.rows([99])))[0, 0], .7 ** np.arange(1, 5),
                               atol=.03)
    survival = Survival(1, 4, kappa=8, memory=1e6)
    teach(survival, [.9, .6], rounds=1500)
    good, poor = survival.curves(survival.frailty(survival.rows([0, 1])))[:, 0]
    np.testing.assert_allclose([good[0], poor[0]], [.9, .6], atol=.06)
    assert good[3] > .5 > .3 > poor[3]


def test_drafting_deeply_for_good_requests_only_does_not_make_depth_look_easy():
    survival, rng = Survival(1, 4, kappa=8, memory=1e6), np.random.default_rng(0)
    for _ in range(2000):       # the good one drafts 4 tokens, the poor one 1
        chance, gamma = np.array([.9, .5]), np.array([4, 1])
        accepted = np.minimum(np.cumprod(rng.random((2, 4)) < chance[:, None], 1).sum(1), gamma)
        survival.draft([0, 1], np.zeros(2, int), gamma, accepted)
    new = survival.curves(survival.frailty(survival.rows([9])))[0, 0]
    assert new[3] < .9 ** 4 - .1, "a new request is the average one, not the good one"


def test_reading_along_separates_requests_without_a_draft():
    survival = Survival(1, 4, kappa=4, memory=1e6)
    for _ in range(20):
        survival.read_along(0, 0, [1.0] * 5)
        survival.read_along(1, 0, [0.0, 1.0, 0.0, float("nan")])
    theta = survival.frailty(survival.rows([0, 1]))[:, 0]
    assert theta[0] < .5 < 1.5 < theta[1]
    assert survival.availability(survival.rows([0, 1]))[1, 0] < survival.availability(survival.rows([0, 1]))[0, 0]


def test_the_budget_goes_to_the_requests_that_use_it():
    selector = make("spin-full", ["a"], cost=Passes((1, 100), (1.0, 3.0)))
    rng = np.random.default_rng(0)
    for step in range(300):
        views = [RequestView(r, step, step + 9, 8) for r in range(2)]
        outcomes = []
        for request, (drafter, gamma) in selector.assign(views).items():
            accepted = int(np.cumprod(rng.random(8) < (.95, .3)[request]).sum().clip(0, gamma))
            outcomes.append(Outcome(request, drafter, gamma, accepted, accepted + 1, .01 * gamma, .5, 4, 1.1))
        selector.observe(outcomes)
    choices = selector.assign([RequestView(r, 300, 309, 8) for r in range(2)])
    assert choices[0].gamma >= 6 and choices[1].gamma <= choices[0].gamma - 3


@pytest.mark.parametrize("slope, least, most", [(0.0001, 5, 8), (1.0, 0, 1)])
def test_dear_rows_shorten_drafts(slope, least, most):
    selector = make("spin-full", ["a"], cost=Passes((1, 1001), (1.0, 1.0 + 1000 * slope)))
    for step in range(60):
        choice = selector.assign([RequestView(0, step, step + 9, 8)])[0]
        accepted = min(choice.gamma, (3, 1, 0, 2)[step % 4])
        selector.observe([Outcome(0, choice.drafter, choice.gamma, accepted, accepted + 1, .001 * choice.gamma, 1.0,
                                  1 + choice.gamma, 1.0)])
    assert least <= selector.assign([RequestView(0, 60, 69, 8)])[0].gamma <= most


def test_epochs_explore_about_as_often_as_the_logarithm():
    epochs = Epochs(1, 8, 2.0)
    ticks = [epochs.tick() for _ in range(10_000)]
    assert ticks[0] and not any(ticks[1:9]) and ticks[9] and not any(ticks[10:26]) and ticks[26]
    assert sum(ticks) == pytest.approx(np.log2(10_000 / 8), abs=2)
    assert not any(Epochs(0, 1, 1.0).tick() for _ in range(5))
    epochs = Epochs(1, 4, 1.0)
    assert [epochs.tick(3) for _ in range(14)] == 2 * (3 * [True] + 4 * [False])
