"""Policies: every request in exactly one group, balanced within known bounds, what belongs together together."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from spin_core.lab.schedule import simulate
from spin_core.names import load_rivals
from spin_core.pipeline.grouping import NAMES, Item, balanced, heaviest, join, johnson, split, weigher

load_rivals()           # now: within a test it would take longer than hypothesis allows
ITEMS = st.lists(st.builds(Item, st.sampled_from("abc"), st.integers(1, 500), st.floats(0.1, 5), st.floats(0.1, 5)),
                 max_size=10)


@given(ITEMS, st.integers(1, 6), st.sampled_from(NAMES))
def test_everyone_sits_in_one_group_and_no_group_is_empty(items, count, policy):
    groups = split(items, count, policy)
    assert sorted(i for group in groups for i in group) == list(range(len(items)))
    assert len(groups) == min(count, len(items)) and all(groups)
    assert groups == split(items, count, policy), "no chance in it"


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 5), min_size=2, max_size=7), st.integers(2, 3))
def test_balanced_keeps_grahams_bound(seconds, count):
    items = [Item(draft=s, verify=s) for s in seconds]
    longest = max(sum(seconds[i] for i in group) for group in split(items, count))
    best = min(max(sum(s for s, g in zip(seconds, groups_of) if g == k) for k in range(count))
               for groups_of in itertools.product(range(count), repeat=len(seconds)))
    assert longest <= best * (4 / 3 - 1 / (3 * count)) + 1e-9


@settings(deadline=None)
@given(ITEMS, st.integers(1, 6))
def test_balanced_is_the_rule_with_every_group_added_up_anew(items, count):
    weigh, groups = weigher(items), [[] for _ in range(count)]
    for i in sorted(range(len(items)), key=lambda i: -weigh([i])):
        min(groups, key=lambda group: weigh([*group, i])).append(i)
    assert balanced(items, count) == groups


def test_a_request_costs_as_much_to_place_in_a_large_batch():
    """It happens at every step: 64 requests are looked at four times as often as 16, not sixteen times."""
    looked = []

    class Watched:
        verify = 1.0

        @property
        def draft(self) -> float:
            looked.append(self)
            return 1.0

    counts = []
    for batch in (16, 64):
        looked.clear()
        balanced([Watched() for _ in range(batch)], 4)
        counts.append(len(looked))
    assert counts[1] <= 5 * counts[0]


def test_balanced_looks_at_both_stages():
    items = [Item(draft=4, verify=1)] * 2 + [Item(draft=1, verify=4)] * 2
    for group in split(items, 2):
        assert sum(items[i].draft for i in group) == sum(items[i].verify for i in group) == 5


def test_drafters_stay_together_where_that_is_balanced():
    items = [Item("a"), Item("b"), Item("a"), Item("b")]
    assert sorted(split(items, 2, "drafter")) == [[0, 2], [1, 3]]
    one = [Item("a")] * 6
    assert sorted(map(len, split(one, 3, "drafter"))) == [2, 2, 2], "one drafter for all: cut evenly"
    mixed = [Item("a")] * 4 + [Item("b")] * 2 + [Item("c")] * 2
    groups = split(mixed, 2, "drafter")
    assert sorted(map(len, groups)) == [4, 4] and [0, 1, 2, 3] in groups


@given(st.lists(st.integers(1, 500), min_size=1, max_size=10), st.integers(1, 5))
def test_neighbours_in_length_sit_together(lengths, count):
    groups = split([Item(length=n) for n in lengths], count, "length")
    spans = sorted((min(lengths[i] for i in g), max(lengths[i] for i in g)) for g in groups)
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:]))
    assert max(map(len, groups)) - min(map(len, groups)) <= 1, "equal work is shared out evenly"


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 5), st.floats(0.1, 5)), min_size=1, max_size=5))
def test_johnsons_order_is_the_fastest(times):
    items = [Item(draft=d, verify=v) for d, v in times]

    def seconds(order) -> float:
        return simulate([items[i].draft for i in order], [items[i].verify for i in order]).seconds

    order = [i for group in johnson([[i] for i in range(len(items))], items) for i in group]
    assert seconds(order) <= min(map(seconds, itertools.permutations(range(len(items))))) + 1e-9


def test_a_newcomer_joins_the_lightest_group():
    items = [Item(draft=3, verify=3), Item(), Item(), Item()]
    assert join(3, [[0], [1, 2]], items) == 1 and join(3, [[1], [0, 2]], items) == 0
    assert heaviest([[0], [1, 2, 3]], items) == 0.5 and heaviest([[0, 3], [1, 2]], items) == pytest.approx(2 / 3)


def test_what_is_unknown_is_refused():
    with pytest.raises(ValueError, match="unknown grouping policy 'colour'; known: balanced, drafter, length"):
        split([Item()], 1, "colour")
    with pytest.raises(ValueError, match="at least one group"):
        split([Item()], 0)
    assert split([], 3) == []
