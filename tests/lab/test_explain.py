"""What a selector says that it believes, and that saying it changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from spin_core.lab.simulate.replay import replay
from spin_core.lab.simulate.synthetic import synthetic
from spin_core.lab.explain import explain, watch
from spin_core.select import NONE, Outcome, RequestView, make
from tests.select.test_policies import POLICIES, build, serve

ARMS, GAMMA = ["a", "b", "ngram"], {"a": 2, "b": 4, "ngram": 8}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_explains_its_choice_and_explaining_changes_nothing(policy):
    plain, watched = build(policy, seed=4), build(policy, seed=4)
    assert explain(plain) is None
    steps = watch(watched)
    choices = serve(watched, 12, capacities={"b": 1})
    assert choices == serve(plain, 12, capacities={"b": 1}) and len(steps) == 12
    for step, chosen in zip(steps, choices):
        assert step.requests == [0, 1, 2, 3] and step.arms == [*ARMS, NONE]
        assert step.places.tolist() == [4, 1, 4, 4] and step.ready.all()
        for b, request in enumerate(step.requests):
            drafts = step.gammas[b] > 0
            assert chosen[request] == ((step.arms[step.chosen[b]], step.gammas[b]) if drafts else (NONE, 0))
            assert step.found[b, 2] == (request % 2 == 1) and step.earned[b] == step.accepted[b] + 1
            assert step.drafted[b] == step.gammas[b] and step.seconds[b] > 0
        assert step.estimate.shape == step.count.shape == step.weights.shape == (4, 4) and len(step.why) == 4


def test_the_estimates_of_spin_are_tokens_over_seconds_and_its_slots_follow_the_epochs():
    selector = make("spin", ["a"], gamma=2, prior=0, explore=1, first=2, growth=2.0)
    steps = watch(selector)
    for step in range(9):
        views = [RequestView(0, step, step + 5, 8, "a", unread={"a": 0.5 * (step == 8)})]
        gamma = selector.assign(views)[0].gamma
        selector.observe([Outcome(0, "a" if gamma else NONE, gamma, gamma, gamma + 1, .1 * gamma, .3)])
    assert [s.slot for s in steps] == [(0, 0, 1, 2), (0, 1, 1, 2), (0, 2, 1, 2), *((1, i, 1, 4) for i in range(5)),
                                       (2, 0, 1, 8)]
    assert [s.exploring for s in steps] == [s.slot[1] == 0 for s in steps]
    assert np.isnan(steps[0].estimate[0]).all() and steps[0].why == ["no opinion"]
    assert steps[-1].estimate[0].tolist() == pytest.approx([3 / .5, 1 / .3]) and steps[-1].why == ["best estimate"]
    assert steps[-1].count[0].sum() == 8 and not steps[-1].ready[0, 0] and steps[-1].current.tolist() == [0]


@pytest.mark.parametrize("policy", ["spin", "spin-full", "exp3"])
def test_requests_that_have_left_keep_no_rows(policy):
    recording = synthetic({"w": {"a": .8, "b": .5}}, {"a": .1, "b": .1}, ["w"] * 6, tokens=20)
    selector = make(policy, recording.arms)
    steps = watch(selector)
    replay(recording, selector, batch=2)
    assert explain(selector).requests == steps[-1].requests and steps[-1].earned.sum() > 0
    books = selector.survival if policy == "spin-full" else selector.ledger
    assert not books.row
