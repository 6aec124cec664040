"""What every policy owes the engine, whatever it learns."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from spin_core.select import NONE, Choice, Outcome, Scored, RequestView, make, names
from spin_core.select.assigner import make_selector

ARMS = ["a", "b", "ngram"]
POLICIES = [n for n in names() if not n.startswith("fixed")] + ["fixed:a", f"fixed:{NONE}"]
GAMMA = {"a": 2, "b": 4, "ngram": 8}


def build(policy: str, **options):
    return make(policy, ARMS, **({} if policy == "spin-full" else {"gamma": GAMMA}) | options)


def outcome(request: int, choice: Choice, seconds: float = 0.01, failed: bool = False, accepted: int = 1) -> Outcome:
    accepted = min(accepted, choice.gamma)
    return Outcome(request, choice.drafter, choice.gamma, accepted, accepted + 1, seconds * choice.gamma, seconds,
                   8, 8 * seconds, failed=failed)


def serve(selector, steps: int, batch: int = 4, capacities=None, **more) -> list[dict[int, Choice]]:
    """A few steps of requests that never end."""
    log = []
    for step in range(steps):
        views = [RequestView(r, step, step + 5, 8, found={"ngram": 3 * (r % 2)}) for r in range(batch)]
        choices = selector.assign(views, capacities)
        log.append(choices)
        selector.observe([outcome(r, c, accepted=r % 3, **more) for r, c in choices.items()])
        wishes = selector.probe(views)
        selector.scored([Scored(r, name, [1.0, math.nan, 0.0]) for r, names in wishes.items() for name in names])
    return log


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=20, deadline=None)
@given(st.dictionaries(st.sampled_from(ARMS), st.integers(0, 4)), st.integers(1, 7), st.integers(0, 5))
def test_everyone_is_served_once_and_capacities_hold(policy, capacities, batch, seed):
    for choices in serve(build(policy, seed=seed), 12, batch, capacities):
        assert sorted(choices) == list(range(batch))
        for name, capacity in capacities.items():
            assert sum(c.drafter == name for c in choices.values()) <= capacity
        assert all(0 <= c.gamma <= 8 and (c.gamma == 0) == (c.drafter == NONE) for c in choices.values())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_retired_drafter_is_never_chosen_again(policy):
    selector = build(policy)
    serve(selector, 3)
    selector.retire("a")
    assert all(c.drafter != "a" for choices in serve(selector, 25) for c in choices.values())
    with pytest.raises(ValueError, match="none"):
        selector.retire(NONE)


@pytest.mark.parametrize("policy", ["spin-full", "hedge"])
def test_who_is_retired_in_mid_step_is_not_listened_to(policy):
    """A drafter may raise between the choice of a step and the reading along behind it."""
    asked = []
    for retiring in (False, True):
        selector, wishes = build(policy), set()
        for request in range(60):
            views = [RequestView(request, 16, 20, 80)]
            selector.observe([outcome(request, selector.assign(views)[request])])
            if retiring and request == 20:
                wishes.clear()
                selector.retire("a")
            wishes.update(*selector.probe(views).values())
        asked.append(wishes)
    assert "a" in asked[0] and "a" not in asked[1]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_order_of_the_views_does_not_matter(policy):
    one, other = build(policy, seed=3), build(policy, seed=3)
    for step in range(15):
        views = [RequestView(r, step, step + 5, 8) for r in range(6)]
        choices = one.assign(views, {"b": 2})
        assert choices == other.assign(views[::-1], {"b": 2})
        for selector in (one, other):
            selector.observe([outcome(r, c, accepted=r) for r, c in sorted(choices.items())])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("bad", [dict(failed=True), dict(seconds=math.nan), dict(seconds=math.inf),
                                 dict(seconds=-1.0), dict(seconds=0.0)])
def test_failures_and_impossible_seconds_are_not_learned(policy, bad):
    taught, other = build(policy, seed=1), build(policy, seed=1)
    views = [RequestView(r, 0, 5, 8) for r in range(4)]
    for _ in range(10):
        choices = taught.assign(views)
        assert choices == other.assign(views)
        good = [outcome(r, c, accepted=r) for r, c in choices.items()]
        taught.observe([*good, *(outcome(r, c, accepted=8, **bad) for r, c in choices.items())])
        other.observe(good)


@pytest.mark.parametrize("policy", POLICIES)
def test_near_the_end_no_draft_is_longer_than_can_be_of_use(policy):
    selector = build(policy)
    for room in (0, 1, 2, 8) * 6:
        choice = selector.assign([RequestView(0, 1, 9, room)])[0]
        assert choice.gamma <= room and (room or choice.drafter == NONE)
        selector.observe([outcome(0, choice)])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_drafter_that_would_find_nothing_is_not_chosen(policy):
    selector = build(policy, seed=2)
    for step in range(60):
        views = [RequestView(r, step, step + 5, 8, found={"a": 0, "b": r % 2}) for r in range(4)]
        choices = selector.assign(views)
        assert all(c.drafter != "a" and (c.drafter != "b" or r % 2) for r, c in choices.items())
        selector.observe([outcome(r, c, accepted=1) for r, c in choices.items()])


@pytest.mark.parametrize("policy",
                         ["spin", "spin-full", "greedy", "epsilon-greedy", "ucb", "thompson", "exp3", "hedge"])
def test_learners_find_a_drafter_that_is_far_better(policy):
    selector = build(policy, seed=0)
    counts = dict.fromkeys([*ARMS, NONE], 0)
    rng = np.random.default_rng(0)
    for step in range(400):
        views = [RequestView(r, step, step + 5, 8) for r in range(4)]
        for request, (drafter, gamma) in selector.assign(views).items():
            accepted = gamma if drafter == "b" and rng.random() < .95 else 0
            counts[drafter] += 1
            selector.observe([Outcome(request, drafter, gamma, accepted, accepted + 1, .001 * gamma, .01, 8, .08)])
        wishes = selector.probe(views)
        selector.scored([Scored(r, n, [float(n == "b")] * 3) for r, names in wishes.items() for n in names])
    assert counts["b"] == max(counts.values())
    assert counts["b"] > 1600 * (.4 if policy in ("exp3", "hedge") else .6)


def test_what_cannot_be_is_refused_by_name():
    with pytest.raises(ValueError, match="unknown selection policy 'spinn'"):
        make("spinn", ARMS)
    with pytest.raises(ValueError, match="fixed: unknown arm 'z'"):
        make("fixed:z", ARMS)
    with pytest.raises(ValueError, match="arms repeat"):
        make("random", ["a", "a"])
    with pytest.raises(ValueError, match="'b' has 0"):
        make("random", ["a", "b"], gamma={"a": 1, "b": 0})
    with pytest.raises(ValueError, match="comes twice"):
        build("random").assign([RequestView(1, 0, 5, 8), RequestView(1, 0, 5, 8)])
    with pytest.raises(ValueError, match="capacity of 'a' is -1"):
        build("random").assign([RequestView(1, 0, 5, 8)], {"a": -1})
    with pytest.raises(ValueError, match="growth >= 1"):
        build("spin", growth=.5)
    with pytest.raises(ValueError, match="epsilon"):
        build("epsilon-greedy", epsilon=2)


def books(selector) -> dict[str, dict]:
    """Whatever a selector, or a part of it, keeps by request."""
    parts = [selector, *(getattr(selector, part) for part in ("ledger", "survival") if hasattr(selector, part))]
    return {name: book for part in parts for name, book in vars(part).items()
            if isinstance(book, dict) and book is not selector.index}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_that_left_is_forgotten(policy):
    selector, used = build(policy), set()
    for request in range(200):
        views = [RequestView(request, 16, 20, 80)]     # far enough to be listened to
        for _ in range(2):
            choice = selector.assign(views)[request]
            selector.observe([outcome(request, choice)])
            wishes = selector.probe(views)
            selector.scored([Scored(r, name, [1.0, 0.0]) for r, names in wishes.items() for name in names])
        used |= {name for name, book in books(selector).items() if list(book) == [request]}
        selector.finish(request)
        selector.finish(request)                # twice does no harm
        assert not any(books(selector).values())
    assert used == {"hedge": {"regret", "fresh"}, "spin-full": {"row", "due"}, "random": set()}.get(
        policy, set() if policy.startswith("fixed") else {"row"})


def test_the_sets_of_drafters_that_spin_full_weighs():
    """All of at most three and no speculation, in the order of their arms: the first of equally good sets wins."""
    for arms in (["a"], ["a", NONE, "b"], list("abcdefgh"), [*"abcde", NONE, "f"]):
        selector = make("spin-full", arms)
        sets = [s for s in itertools.product((False, True), repeat=len(selector.arms))
                if s[selector.index[NONE]] and sum(s) <= 4]
        assert selector.sets.tolist() == [list(s) for s in sets]


def test_a_length_of_any_integer_kind_is_a_length():
    assert make("random", ["a"], gamma=np.int64(3)).gamma.tolist() == [3, 0]
    with pytest.raises(ValueError, match="'a' has 2.0"):
        make("random", ["a"], gamma=2.0)


@pytest.mark.parametrize("places, own", [({"a": 1, "b": 2}, True), ({"a": 1}, True), ({"a": 1, "b": 1}, False),
                                         ({}, False), (None, False)])
def test_spin_lets_the_batch_choose_where_drafters_draft_at_once(places, own):
    """With ranks of their own; a drafter that has none is on rank 0, as the lookups are, which compute nothing."""
    ranks = None if places is None else SimpleNamespace(places=places)
    family = SimpleNamespace(drafters={"a": None, "b": None}, ranks=ranks)
    pool = SimpleNamespace(get=lambda name: SimpleNamespace(is_lookup=name == "ngram", gamma=None))
    assert make_selector(None, None, None, family, pool).own_devices is own


def test_a_new_lookup_is_tried_where_it_finds_something():
    """Requests of which the first never has anything to look up: the others try the lookup all the same."""
    selector = make("spin", ["ngram"], gamma=2)
    tried = [r for choices in serve(selector, 12) for r, c in choices.items() if c.drafter == "ngram"]
    assert tried and not any(r % 2 == 0 for r in tried)
