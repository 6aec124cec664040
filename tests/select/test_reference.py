"""SPIN against the paper's rule said in sixty lines: the same slots explore, and the same drafters are matched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from spin_core.select import NONE, Outcome, RequestView, make
from spin_core.select.reference import Reference
from spin_core.select.spin import ALONE

ARMS = ["a", "b", "c"]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), st.integers(1, 6), st.lists(st.integers(0, 6), min_size=3, max_size=3))
def test_the_matching_of_an_exploiting_slot_is_the_papers(seed, batch, room):
    """With no prior and nothing to read, after every request has tried every arm, and another request before them: the
    first steps of a new drafter count in another way."""
    rng = np.random.default_rng(seed)
    spin = make("spin", ARMS, explore=0, prior=0.0, gamma=4)
    for arm in (ALONE + 1) * ARMS:        # one more, since older steps count less
        spin.observe([Outcome(batch, arm, 4, 2, 3, .01, .01)])
    slots = dict(zip(ARMS, room)) | {NONE: batch}
    reference = Reference(slots, explore=0)
    for arm in (*ARMS, NONE, *rng.choice(ARMS, 6)):
        outcomes = []
        for request in range(batch):
            drafted, seconds = 4 * (arm != NONE), float(rng.uniform(.01, .1))
            accepted = int(rng.integers(0, 5)) * (arm != NONE)
            if arm == NONE:         # no speculation is the same for all requests
                seconds = .02
            outcomes.append(Outcome(request, arm, drafted, accepted, accepted + 1, seconds / 2, seconds / 2))
            reference.observe(request, arm, accepted + 1, seconds)
        spin.observe(outcomes)
    chosen = spin.assign([RequestView(r, 9, 20, 8) for r in range(batch)], dict(zip(ARMS, room)))
    expected = reference.choose(list(range(batch)))

    def goodput(arms: dict[int, str]) -> float:
        return sum(reference.goodput(r, arm) for r, arm in arms.items())

    assert goodput({r: c.drafter for r, c in chosen.items()}) == pytest.approx(goodput(expected))


@given(st.integers(0, 3), st.integers(1, 6), st.sampled_from((1.0, 1.5, 2.0)))
def test_the_same_slots_explore(explore, first, growth):
    epochs = make("spin", ARMS, explore=explore, first=first, growth=growth).epochs
    reference = Reference(dict.fromkeys(ARMS, 1), explore=explore, first=first, growth=growth)
    for _ in range(60):
        reference.choose([0])
        assert reference.exploring == epochs.tick()


def test_an_exploring_slot_draws_any_drafter():
    reference = Reference(dict.fromkeys(ARMS, 1), explore=300)
    drawn = [reference.choose([0])[0] for _ in range(300)]
    assert all(70 < drawn.count(arm) < 130 for arm in ARMS)
