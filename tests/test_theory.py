"""The formulas against published numbers, against a simulated coin, and against counts done by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from spin_core import theory
from spin_core.trace import Event


def step(drafted: int, accepted: int, emitted: int | None = None) -> Event:
    return Event("step", 0.0, 0, drafted=list(range(drafted)), accepted=accepted,
                 emitted=list(range(accepted + 1 if emitted is None else emitted)))


@pytest.mark.parametrize("alpha, cost, gamma, gain",
                         [(0.8, 0.05, 8, 3.09), (0.6, 0.05, 4, 1.92), (0.8, 0.1, 6, 2.47)])
def test_best_gamma_gives_the_published_optima(alpha, cost, gamma, gain):
    best, speed_up = theory.best_gamma(alpha, cost)
    assert best == gamma
    assert speed_up == pytest.approx(gain, abs=0.005)


def test_expected_tokens_is_what_flipping_coins_gives():
    alpha, gamma = 0.7, 5
    accepted = np.random.default_rng(0).random((200_000, gamma)) < alpha
    tokens = 1 + np.cumprod(accepted, 1).sum(1)
    error = tokens.std() / 200_000**0.5
    assert theory.expected_tokens(alpha, gamma) == pytest.approx(tokens.mean(), abs=4 * error)


@given(st.floats(0, 1), st.integers(0, 30))
def test_expected_tokens_is_the_geometric_sum_at_every_alpha(alpha, gamma):
    geometric = pytest.approx(sum(alpha**j for j in range(gamma + 1)), rel=1e-6)
    assert theory.expected_tokens(alpha, gamma) == geometric
    assert theory.expected_tokens_by_position([alpha] * gamma, gamma) == geometric


@given(st.floats(0, 0.99), st.floats(0.001, 1))
def test_drafting_pays_exactly_when_alpha_exceeds_the_cost(alpha, cost):
    assume(abs(alpha - cost) > 1e-9)        # at equality rounding decides
    best, gain = theory.best_gamma(alpha, cost)
    assert (best > 0) == (alpha > cost)
    assert gain >= max(1.0, float(theory.speed_up(alpha, np.arange(65), cost).max()))


def test_arrays_broadcast():
    table = theory.expected_tokens(np.array([[0.0], [0.5], [1.0]]), np.array([0, 1, 2]))
    np.testing.assert_allclose(table, [[1, 1, 1], [1, 1.5, 1.75], [1, 2, 3]])


@pytest.mark.parametrize("alpha, gamma", [(-0.1, 2), (1.1, 2), (0.5, -1)])
def test_nonsense_is_refused(alpha, gamma):
    with pytest.raises(ValueError, match="alpha must be in"):
        theory.expected_tokens(alpha, gamma)


def test_expected_tokens_by_position_needs_an_alpha_for_every_place():
    with pytest.raises(ValueError, match="gamma 3 needs"):
        theory.expected_tokens_by_position([0.5, 0.5], 3)
    assert theory.expected_tokens_by_position([0.5, 0.4, None], 3) == 1 + 0.5 + 0.2


def test_position_counts_look_at_the_accepted_and_the_rejected_only():
    steps = [
        step(3, 0),              # first rejected: one look
        step(3, 2),              # third rejected: three looks
        step(3, 3),              # all accepted and a bonus token
        step(3, 2, emitted=2),   # the text ended with the second accepted token: the third was not looked at
        step(1, 1),              # a shorter draft
        step(0, 0),              # nothing drafted
    ]
    tested, accepted = theory.position_counts(steps, 3)
    assert tested.tolist() == [5, 3, 2]
    assert accepted.tolist() == [4, 3, 1]
    assert theory.rates([4, 0], [1, 0]) == [0.25, None]
    assert theory.one_rate(tested, accepted) == 8 / 10
    assert theory.one_rate([0, 0], [0, 0]) is None
