"""Text and table joined: whose guess is taken for every token, and what the drafter tells about text it reads."""

import tiny
from hypothesis import given, settings, strategies as st
from test_table_drafter import SIZE, family, shard

from spin_core.draft import DraftTable, JoinedLookup, TableDrafter
from spin_core.draft.pool import build
from spin_core.lab.distill.table import make_table
from spin_core.request import Request, SamplingParams

texts = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=16)


def joined(answers) -> JoinedLookup:
    tensors = make_table([shard([([0], answer) for answer in answers])], SIZE, 10**6, 0.0, longest=5)
    return JoinedLookup(TableDrafter(DraftTable("table", **tensors, vocab_size=SIZE, longest=5)))


def in_text(text: list[int], ids: list[int]) -> tuple[int, int | None]:
    """What followed the latest occurrence, within ``text``, of the last four tokens of ``ids`` or fewer."""
    for n in range(min(4, len(ids)), 0, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if text[start:start + n] == ids[-n:]:
                return n, text[start + n]
    return 0, None


@settings(max_examples=80, deadline=None)
@given(answers=st.lists(texts, min_size=1, max_size=6), text=texts, count=st.integers(0, 8))
def test_every_token_comes_from_the_source_that_is_more_often_right(answers, text, count):
    ours, ids = joined(answers), list(text)
    expected = []
    while len(expected) < count:
        said, token = in_text(text, ids)
        known, habit = ours.table.follower(ids)
        ranked = [(rank, guess) for rank, guess in (({4: 1, 3: 3, 2: 3, 1: 5}.get(said), token),
                                                    ({5: 2, 4: 4, 3: 4, 2: 4, 1: 6}.get(known), habit)) if rank]
        if not ranked:
            break
        expected.append(min(ranked)[1])
        ids.append(expected[-1])
    request = Request(text, SamplingParams(), slot=0)
    draft = ours.propose([request], [count])
    assert draft.tokens.tolist() == expected and ours.available(request, count) == len(expected)
    assert draft.probs is None and (draft.prob_row == -1).all()         # one-hot


@settings(max_examples=40, deadline=None)
@given(answers=st.lists(texts, min_size=1, max_size=6), prompt=texts, answer=texts)
def test_reading_tells_what_it_would_have_said(answers, prompt, answer):
    ours, fresh = joined(answers), joined(answers)
    request = Request(prompt, SamplingParams(), slot=0, output_ids=list(answer))
    read, = ours.catch_up([request])
    assert (read.first, read.tokens) == (len(prompt), request.length) and ours.missing(request) == 0
    for n, hit in enumerate(read.hits):
        said = fresh.propose([Request(prompt + answer[:n], SamplingParams(), slot=n)], [1]).tokens.tolist()
        assert hit == (said == [answer[n]] if said else None)
    ours.rollback(0, 0)
    assert not ours.index


def test_it_is_what_the_name_of_a_lookup_and_a_table_stands_for():
    made = build("ngram+habits", family(), 1, 64, None)
    assert isinstance(made, JoinedLookup) and made.is_lookup and made.name == "ngram+habits"
    assert not isinstance(build("ngram+near", tiny.family(), 1, 64, None), JoinedLookup)
