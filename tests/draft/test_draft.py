"""The Draft contract, the null drafter, and prompt lookup."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from spin_core.draft import Draft, NgramDrafter, NullDrafter
from spin_core.request import Request, SamplingParams


def request(prompt: list[int], output: list[int] = (), slot: int = 0) -> Request:
    return Request(list(prompt), SamplingParams(), output_ids=list(output), slot=slot)


def proposals(draft: Draft) -> list[list[int]]:
    return [part.tolist() for part in draft.tokens.split(draft.counts.tolist())]


def test_one_hot_drafts_have_no_distributions():
    """Rule 2: what is deterministic is one-hot, whatever scores led to it."""
    draft = Draft.one_hot([[4, 5], [], [6]])
    assert draft.cu.tolist() == [0, 2, 2, 3] and draft.counts.tolist() == [2, 0, 1]
    assert draft.tokens.tolist() == [4, 5, 6] and draft.tokens.dtype == torch.int64
    assert draft.probs is None and draft.prob_row.tolist() == [-1, -1, -1]


@pytest.mark.parametrize("draft", [Draft.empty(3), Draft.one_hot([[], [], []]),
                                   NullDrafter().propose([request([1], slot=i) for i in range(3)], [4, 0, 2])])
def test_nothing_drafted_is_a_draft_too(draft):
    assert draft.counts.tolist() == [0, 0, 0] and draft.tokens.numel() == 0


def test_the_longest_and_then_the_latest_occurrence_wins():
    drafter = NgramDrafter(longest=3, shortest=2)
    #                          the triple 1 2 3 is found before the later pair 2 3
    assert proposals(drafter.propose([request([1, 2, 3, 50, 9, 2, 3, 60, 1, 2, 3])], [2])) == [[50, 9]]
    #                          of two equal pairs the later one
    assert proposals(NgramDrafter().propose([request([7, 8, 1, 5, 7, 8, 2, 6, 7, 8])], [3])) == [[2, 6, 7]]


def test_nothing_is_proposed_without_an_earlier_occurrence():
    drafter = NgramDrafter()
    requests = [request([1], slot=0), request([1, 2, 3, 4], slot=1), request([1, 2, 9, 2], slot=2)]
    assert proposals(drafter.propose(requests, [3, 3, 3])) == [[], [], []]


def test_a_request_that_may_not_draft_gets_nothing():
    assert proposals(NgramDrafter().propose([request([1, 2, 1, 2])], [0])) == [[]]


def brute_force(ids: list[int], count: int, longest: int, shortest: int) -> list[int]:
    for n in range(longest, shortest - 1, -1):
        for start in range(len(ids) - n - 1, -1, -1):
            if ids[start:start + n] == ids[len(ids) - n:]:
                return ids[start + n:start + n + count]
    return []


@given(steps=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=8),
       sizes=st.sampled_from([(3, 2), (1, 1), (4, 1), (2, 2)]), count=st.integers(1, 5), other=st.booleans())
def test_growing_text_is_looked_up_as_if_read_afresh(steps, sizes, count, other):
    """The index is extended step by step, per slot, through whichever steps this drafter is asked."""
    drafter, grows = NgramDrafter(*sizes), request(steps[0])
    for number, more in enumerate(steps[1:] + [[]]):
        if number % 2 == 0 or not other:            # sometimes another drafter has the request in between
            mates = [request([0, 1, 0, 1], slot=1), grows]
            found = proposals(drafter.propose(mates, [2, count]))
            assert found[1] == brute_force(grows.ids, count, *sizes)
            assert found[0] == brute_force([0, 1, 0, 1], 2, *sizes)
        grows.output_ids += more


def test_a_new_request_in_the_slot_does_not_see_the_old_ones_text():
    drafter = NgramDrafter()
    drafter.propose([request([1, 2, 3, 1, 2])], [1])
    drafter.rollback(0, 4)      # after a verification: only committed text was ever read, nothing is forgotten
    assert proposals(drafter.propose([request([1, 2, 3, 1, 2])], [1])) == [[3]]
    drafter.rollback(0, 0)
    assert proposals(drafter.propose([request([1, 2])], [1])) == [[]]
    drafter.rollback(0, 0)
    assert drafter.index == {}


@pytest.mark.parametrize("sizes", [(2, 3), (3, 0), (0, 0)])
def test_impossible_suffix_lengths_are_refused(sizes):
    with pytest.raises(ValueError, match="1 <= shortest <= longest"):
        NgramDrafter(*sizes)
