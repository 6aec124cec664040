"""The table of the target's habits: how it is counted, looked up, kept in a file, and served."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
import tiny
import torch
from hypothesis import given, settings, strategies as st

from spin_core.lab.distill.corpus import Shard
from spin_core.lab.distill.table import make_table
from spin_core.draft import DraftTable, TableDrafter
from spin_core.draft.table import key
from spin_core.engine import Engine
from spin_core.request import Request, SamplingParams

SIZE = 5
text = st.lists(st.integers(0, SIZE - 1), max_size=12)
sequences = st.lists(st.tuples(text.filter(len), text), min_size=1, max_size=8)


def shard(pairs) -> Shard:
    return Shard.build([p for p, _ in pairs], [a for _, a in pairs], [0.0] * len(pairs))


def drafter(tensors, vocab_size: int = SIZE) -> TableDrafter:
    return TableDrafter(DraftTable("table", tensors["contexts"], tensors["followers"], vocab_size))


def counted(pairs) -> dict[tuple[int, ...], Counter]:
    """The same by brute force: what followed every context of one to three tokens, in the answers."""
    out = defaultdict(Counter)
    for prompt, answer in pairs:
        ids = prompt + answer
        for t in range(len(prompt), len(ids)):
            for length in (1, 2, 3):
                if t >= length:
                    out[tuple(ids[t - length:t])][ids[t]] += 1
    return out


def usual(counts: Counter, bound: float) -> int | None:
    most = max(counts.values())
    token = min(t for t, c in counts.items() if c == most)
    return token if most / (counts.total() + 1) >= bound else None


@settings(max_examples=60, deadline=None)
@given(pairs=sequences, bound=st.sampled_from([0.0, 0.4, 0.6]), context=text, count=st.integers(0, 6))
def test_the_longest_known_context_says_what_usually_follows(pairs, bound, context, count):
    known = counted(pairs)
    expected, ids = [], list(context)
    while len(expected) < count:
        said = [usual(known[tuple(ids[-n:])], bound) for n in (3, 2, 1) if len(ids) >= n and tuple(ids[-n:]) in known]
        said = [token for token in said if token is not None]
        if not said:
            break
        expected.append(said[0])
        ids.append(said[0])
    shards = [shard(pairs[:1]), shard(pairs[1:])] if pairs[1:] else [shard(pairs)]
    ours = drafter(make_table(shards, SIZE, 10**6, bound))
    assert ours.continuation(context, count) == expected
    if context:
        draft = ours.propose([Request(context, SamplingParams(), slot=0)] * 2, [count, 0])
        assert draft.tokens.tolist() == expected and draft.counts.tolist() == [len(expected), 0]
        assert ours.available(Request(context, SamplingParams()), count) == len(expected)
        assert draft.probs is None and (draft.prob_row == -1).all()         # one-hot


def test_a_key_belongs_to_one_context():
    contexts = [(), *((a,) for a in range(4)), *((a, b) for a in range(4) for b in range(4)),
                *((a, b, c) for a in range(4) for b in range(4) for c in range(4))]
    assert len({key(c, 4) for c in contexts}) == len(contexts)
    assert key([49151] * 3, 49152) < 2**47


@given(pairs=sequences, most=st.integers(0, 20))
def test_of_too_many_entries_the_most_frequent_stay(pairs, most):
    whole, some = make_table([shard(pairs)], SIZE, 10**6), make_table([shard(pairs)], SIZE, most)
    assert len(some["contexts"]) == len(some["followers"]) == min(most, len(whole["contexts"]))
    assert (some["contexts"].diff() > 0).all() and (some["contexts"].dtype, some["followers"].dtype) == (
        torch.int64, torch.int32)
    frequency = {key(c, SIZE): max(counts.values()) for c, counts in counted(pairs).items()}
    kept = sorted((frequency[k] for k in some["contexts"].tolist()), reverse=True)
    assert kept == sorted((frequency[k] for k in whole["contexts"].tolist()), reverse=True)[:most]


def test_longer_contexts_are_kept_where_they_were_seen_twice():
    answer = [1, 2, 3, 4, 0, 2, 2, 3, 4, 1]
    once, twice = shard([([0], answer)]), shard([([0], answer), ([4], answer)])
    for shards, known in (([once], {1, 2, 3}), ([twice], {1, 2, 3, 4, 5})):
        ours = DraftTable("t", **make_table(shards, SIZE, 10**6, 0.0, longest=5), vocab_size=SIZE, longest=5)
        keys = set(ours.contexts.tolist())
        assert {n for n in range(1, 6) if key(answer[5 - n:5], SIZE) in keys} == known
    # three tokens back it is a tie, which the lowest id wins; further back one text knows better
    assert drafter(make_table([twice], SIZE, 10**6, 0.0)).continuation([1, 2, 3, 4], 1) == [0]
    assert TableDrafter(ours).continuation([2, 2, 3, 4], 1) == [1] and TableDrafter(ours).longest == 5


def test_keys_of_long_contexts_wrap_as_they_are_counted():
    ids = [49151, 7, 40000, 3, 49151, 12]
    table = make_table([shard([(ids, [5]), (ids, [5])])], 49152, 10, 0.0, longest=5)
    assert key(ids[-5:], 49152) in table["contexts"].tolist() and int(table["contexts"].min()) >= 0


def family() -> tiny.TinyFamily:
    """The tiny family and a table of its target's own greedy texts."""
    plain = tiny.family()
    requests = Engine(plain, "none", max_batch=32).generate([[i, 4] for i in range(tiny.VOCAB)],
                                                           SamplingParams(max_new_tokens=30))
    shards = [shard([(r.prompt_ids, r.output_ids) for r in requests])]
    table = make_table(shards, tiny.VOCAB, 10**6)
    return tiny.TinyFamily(plain.target, {**plain.drafters, "habits": DraftTable("habits", **table,
                                                                                vocab_size=tiny.VOCAB)})


@pytest.mark.parametrize("name", ["habits", "ngram+habits", "habits+near", "ngram+habits+subset"])
def test_served_by_the_engine_it_costs_speed_only(name):
    engine = Engine(family(), name, 4, max_batch=4)
    requests = engine.generate([[i, 4] for i in range(9)] + [[i, 9, i] for i in range(5)],
                               SamplingParams(max_new_tokens=30))
    for request in requests:
        tiny.assert_greedy(engine.family.target, request)
    assert engine.trace.metrics()["accepted"] > 50
    tiny.assert_sound(engine, requests)


def test_it_tells_what_it_would_have_said_once_per_token():
    ours = drafter(make_table([shard([([0], [1, 2, 3, 4] * 3)])], SIZE, 10**6))
    request = Request([0], SamplingParams(), slot=0, output_ids=[1, 2, 0])
    assert ours.missing(request) == 3
    read, = ours.catch_up([request])
    assert (read.tokens, read.first, read.hits) == (0, 1, [True, True, False]) and ours.missing(request) == 0
    request.output_ids += [3, 4]
    read, = ours.catch_up([request])
    assert (read.first, read.hits[1]) == (4, True) and len(read.hits) == 2
    ours.rollback(0, 0)
    assert not ours.scored
