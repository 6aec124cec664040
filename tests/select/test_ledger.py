"""The books of most policies: a rate is that of the present batch, in whatever batch the arm was tried."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spin_core.select import NONE, Outcome, RequestView, make, spin
from spin_core.select.costs import AffineCost, shares
from spin_core.select.ledger import Ledger
from spin_core.theory import speed_up

FIXED, SLOPE = 0.06, 0.005          # seconds: the target's pass over n rows takes FIXED + SLOPE n
steps = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12)


def taught() -> AffineCost:
    cost = AffineCost()
    for rows in (1, 2, 40):
        cost.learn(rows, FIXED + SLOPE * rows)
    return cost


def outcomes(count: int, drafted: int, accepted: int, name: str = "a") -> list[Outcome]:
    """A step of ``count`` requests, of which request 0 drafts."""
    rows = count + drafted
    plain, own = shares([drafted] + [0] * (count - 1), FIXED + SLOPE * rows, taught())
    return [Outcome(r, NONE if r else name, 0 if r else drafted, 0 if r else accepted, 1 if r else accepted + 1,
                    0.0 if r else 0.001 * drafted, plain + float(own[r]), rows, FIXED + SLOPE * rows, plain)
            for r in range(count)]


@given(steps, st.integers(1, 9))
def test_rates_are_those_of_the_present_batch(tried, now):
    ledger = Ledger(2, 1)
    for count in (1, 9):                # so that both parameters of the plain pass are known
        ledger.add(outcomes(count, 0, 0, NONE), np.ones(count, int))
    tokens = seconds = 0.0
    for count, drafted, accepted in tried:
        accepted = min(accepted, drafted)
        ledger.add(outcomes(count, drafted, accepted), np.array([0] + [1] * (count - 1)))
        tokens += accepted + 1
        seconds += (FIXED + SLOPE * now) / now + (SLOPE + 0.001) * drafted      # had the batch been of today's size
    rates = ledger.rates(ledger.rows(range(now)))
    assert rates[0] == pytest.approx([tokens / seconds, now / (FIXED + SLOPE * now)], rel=1e-6)


def test_an_arm_tried_alone_is_not_taken_for_a_slow_one():
    """Request 0 tries "b" while it is alone, and the batch has "a" when it is full; b brings more in any batch."""
    selector = make("spin", ["a", "b"], explore=0, prior=0.0)
    views = [RequestView(r, 9, 20, 8) for r in range(9)]
    for _ in range(3):
        selector.observe(outcomes(9, 2, 1, "a"))
        selector.observe(outcomes(1, 2, 2, "b"))
    assert selector.assign(views)[0].drafter == "b"


@given(st.floats(.05, .95), st.floats(.01, 2.0), st.integers(1, 8))
def test_spin_drafts_as_many_tokens_as_pay(alpha, cost, gamma):
    """A thousand drafts, of which each tested token held with ``alpha`` and cost ``cost`` plain steps."""
    fixed, selector = (make("spin", ["a", "b"], gamma={"a": gamma, "b": 3}, shorten=some) for some in (False, True))
    assert fixed.lengths([RequestView(0, 9, 20, 8)], np.array([0, 1])).tolist() == [gamma, 3]
    for _ in range(2):
        selector.observe([Outcome(0, NONE, 0, 0, 1, 0.0, .01, 1, .01, .01)])
    none, a, b = (selector.index[name] for name in (NONE, "a", "b"))
    selector.totals[:, a] = 1000, 1000 + alpha * 1e6, cost * .01 * 1e6, 1e6, 1e6    # steps, tokens, s, tested, drafted
    lengths = selector.lengths([RequestView(0, 9, 20, 8)], np.array([a]))
    assert 1 <= lengths[0] <= gamma
    assert speed_up(alpha, lengths[0], cost) == pytest.approx(
        max(speed_up(alpha, length, cost) for length in range(1, gamma + 1)), rel=1e-4)
    # a drafter that is not known yet, and plain decoding
    assert selector.lengths([RequestView(0, 9, 20, 8)], np.array([b, none])).tolist() == [1, 0]


def test_a_request_whose_drafts_hold_drafts_more_than_its_neighbour():
    selector = make("spin", ["a"], gamma=8, shorten=True)
    views = [RequestView(r, 9, 20, 8) for r in range(2)]
    for _ in range(20):
        selector.observe([Outcome(r, "a", 4, 4 - 4 * r, 5 - 4 * r, .01, .08, 10, .16, .05) for r in range(2)])
    holds, fails = selector.lengths(views, np.array([0, 0]))
    assert holds > 4 > fails >= 1


def test_a_request_alone_tries_every_drafter_when_it_explores():
    selector = make("spin", ["a", "b", "c", "d", "e"], first=50, growth=1.0, gamma=2, prior=0.0)
    tried = []
    for _ in range(5):
        chosen = selector.assign([RequestView(0, 9, 20, 8)])[0]
        tried.append(chosen.drafter)
        selector.observe([Outcome(0, chosen.drafter, chosen.gamma, 1, 2, .01, .05, 3, .05, .05)])
    assert sorted(tried) == ["a", "b", "c", "d", "e"]


def served(selector, views: list[RequestView], tokens: dict[str, int], steps: int) -> list[dict]:
    """Steps in which a drafter always brings as many tokens; the choices."""
    log = []
    for _ in range(steps):
        log.append(selector.assign(views))
        selector.observe([Outcome(r, c.drafter, c.gamma, tokens[c.drafter] - 1, tokens[c.drafter], .001, .05, 3, .05,
                                  .05) for r, c in log[-1].items()])
    return log


@pytest.mark.parametrize("left, chosen", [(200, "a"), (20, "none")])
def test_a_drafter_whose_reading_would_not_be_repaid_is_not_chosen(left, chosen):
    """It is twice as fast as plain decoding, and reading takes as long as 20 tokens do."""
    selector, price = make("spin", ["a"], first=1000, gamma=1), {"a": 1.0}
    served(selector, [RequestView(0, 9, 20, 8)], {"a": 2, "none": 1}, 8)
    log = served(selector, [RequestView(1, 0, 20, left - 1, unread=price)], {"a": 2, "none": 1}, 8)
    assert [choices[1].drafter for choices in log] == [chosen] * 8


@pytest.mark.parametrize("lengths", [[5, 4, 3, 2, 1, 0], [3] * 6], ids=["texts of all lengths", "texts of one length"])
def test_a_drafter_that_would_read_for_long_is_explored_by_one_request_only(lengths, monkeypatch):
    monkeypatch.setattr(spin.Spin, "_may_pay", lambda self, views, rates, price: np.ones_like(rates, bool))
    selector = make("spin", ["a", "b"], first=1, growth=1.0, gamma=1, prior=1000.0)
    views = [RequestView(r, 9, 20, 99) for r in range(6)]
    before = served(selector, views, {"a": 1, "b": 1, "none": 1}, 9)                # no drafter is worth it
    explored = any(c.drafter != "none" for c in before[-1].values())
    unread = [RequestView(r, 9, 20, 99, unread={"a": 1.0 + n, "b": 2.0 + n}) for r, n in enumerate(lengths)]
    for step, choices in enumerate(served(selector, unread, {"a": 1, "b": 1, "none": 1}, 12)):
        tried = {c.drafter: r for r, c in choices.items() if c.drafter != "none"}
        assert len(tried) == sum(c.drafter != "none" for c in choices.values())
        assert set(tried) == (set() if (step + explored) % 2 else {"a", "b"})       # an epoch: one slot each
        assert sorted(lengths[r] for r in tried.values()) in ([], sorted(lengths)[:2])


def test_drafters_that_cannot_pay_are_dropped_after_a_few_tries():
    """Seven take three passes of the target for a token that is right now and then; one is about as fast as none."""
    slow, level = [f"slow-{i}" for i in range(7)], "level"
    selector, served_by = make("spin", [*slow, level], first=8, growth=1.0, gamma=1), Counter()
    for step in range(2400):        # the drafters beyond the first six wait until tries have cost little
        request = step // 40
        chosen = selector.assign([RequestView(request, step % 40, 20 + step % 40, 39 - step % 40)])[request]
        served_by[chosen.drafter] += 1
        right, drafting = int(step % 3 == 0), {"none": 0, level: .02}.get(chosen.drafter, .15)
        right *= chosen.gamma
        selector.observe([Outcome(request, chosen.drafter, chosen.gamma, right, 1 + right, drafting, .05,
                                  1 + chosen.gamma, .05, .05)])
        if step % 40 == 39:
            selector.finish(request)
    assert all(1 <= served_by[name] <= 8 for name in slow) and served_by[level] > 20


def test_passes_that_others_slowed_down_are_not_learned():
    cost = taught()
    line = cost.line
    assert cost.decoding(4, 4, 99.0, alone=False) == pytest.approx(cost(4)) and cost.line == line
    assert cost.decoding(4, 4, 99.0) == 99.0 and cost.line != line
