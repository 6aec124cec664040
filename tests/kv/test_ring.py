"""The sparse cache: what a token sees, what the ring holds, against the model under a plain mask."""

from __future__ import annotations

from fractions import Fraction

import pytest
import tiny
import torch
from hypothesis import given, settings, strategies as st

from spin_core.runtime import ModelRunner
from spin_core.kv.ring import AHEAD, RingCache, Window

SLOTS, ROOM = 3, 72
tokens = st.integers(0, tiny.VOCAB - 1)
windows = st.builds(Window, st.integers(1, 12), st.integers(0, 3)) | \
    st.builds(Window, share=st.fractions(Fraction(1, 9), 1, max_denominator=9))
wide = st.sampled_from([Window(ROOM), Window(ROOM, sink=0), Window(share=Fraction(1))])


def masked_logits(ids: list[int], window: Window) -> torch.Tensor:
    """The model's logits when every token sees what ``window`` says, by the library's own masked attention."""
    at = torch.arange(len(ids))
    starts = torch.tensor([window.start(i) for i in range(len(ids))])[:, None]
    seen = (at <= at[:, None]) & ((at < window.sink) | (at >= starts))
    mask = torch.zeros(len(ids), len(ids), dtype=torch.float64).masked_fill(~seen, -torch.inf)[None, None]
    with torch.inference_mode():
        return tiny.family().target(input_ids=torch.tensor([ids]), attention_mask=mask, use_cache=False).logits[0]


def poison(cache: RingCache) -> None:
    """NaN in every entry that must not be read."""
    for slot, length in enumerate(cache.lengths):
        dead = (cache.held[slot] < 0) | (cache.held[slot] >= length)
        for store in cache.k + cache.v:
            store[slot, :, dead] = torch.nan


def run(window: Window, data, check) -> None:
    """Chunks, decodes and rollbacks of ragged batches; ``check(ids)`` are the logits expected behind every token."""
    runner = ModelRunner(tiny.family().target, SLOTS, ROOM, window=window)
    held: list[list[int]] = [[] for _ in range(SLOTS)]
    for _ in range(data.draw(st.integers(1, 5))):
        batch = []
        for slot in data.draw(st.lists(st.integers(0, SLOTS - 1), min_size=1, unique=True)):
            back = data.draw(st.integers(0, min(AHEAD, len(held[slot]))))
            runner.cache.truncate(slot, len(held[slot]) - back)
            del held[slot][runner.cache.lengths[slot]:]         # taken back further than it can: it forgot everything
            room = ROOM - len(held[slot])
            if room:
                most = min(room, data.draw(st.sampled_from([1, 3, 40])))
                new = data.draw(st.lists(tokens, min_size=1, max_size=most))
                held[slot] = held[slot] + new
                batch.append((slot, new))
        if not batch:
            continue
        poison(runner.cache)
        flat = [t for _, new in batch for t in new]
        out = runner.forward([s for s, _ in batch], [len(n) for _, n in batch], flat, list(range(len(flat))))
        expected = torch.cat([check(held[slot])[-len(new):] for slot, new in batch])
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
        assert runner.cache.lengths == [len(h) for h in held]


@settings(max_examples=12, deadline=None)
@given(window=windows, data=st.data())
def test_any_mixture_of_chunks_and_rollbacks_equals_the_model_under_a_mask(window, data):
    run(window, data, lambda ids: masked_logits(ids, window))


@settings(max_examples=6, deadline=None)
@given(window=wide, data=st.data())
def test_a_window_that_covers_everything_is_full_attention(window, data):
    run(window, data, lambda ids: tiny.logits(tiny.family().target, ids))


def test_a_small_window_does_not_equal_full_attention():
    """Else the two tests above would say the same."""
    ids = [(7 * i) % tiny.VOCAB for i in range(30)]
    assert not torch.allclose(masked_logits(ids, Window(5)), tiny.logits(tiny.family().target, ids), atol=1e-3)


def test_the_ring_is_as_small_as_it_says():
    cache = RingCache(Window(64, sink=1), 2, SLOTS, 2, 4096, 8)
    assert cache.k[0].shape[2] == 1 + 64 + AHEAD
    assert RingCache(Window(share=Fraction(1, 8), sink=4), 1, SLOTS, 2, 4096, 8).entries == 4 + 512 + AHEAD
    assert RingCache(Window(64), 1, SLOTS, 2, 32, 8).entries == 32       # no more than the text


def test_taking_back_more_than_was_kept_forgets_the_text():
    cache = RingCache(Window(4), 1, 2, 1, 64, 2, ahead=3)
    for _ in range(5):
        cache.claim(0, 4)
        cache.lengths[0] += 4
    cache.truncate(0, 17)
    assert cache.lengths[0] == 17 and {*range(14, 17), 0} <= set(cache.held[0].tolist())
    cache.truncate(0, 15)                # a token there would see from 12 on, whose entry is 19's now
    assert cache.lengths[0] == 0 and (cache.held[0] == -1).all()


def test_sizes_of_windows():
    assert [Window.parse("64").size(n) for n in (10, 1000)] == [64, 64]
    assert [Window.parse("1/8").size(n) for n in (3, 16, 512)] == [1, 2, 64]
    assert [Window.parse("3/4").size(n) for n in (1, 10)] == [1, 7]
    for share in ("1/2", "2/3", "1/1"):
        starts = [Window.parse(share).start(i) for i in range(40)]
        assert starts == sorted(starts)
    for text in ("", "0", "4/3", "1/0", "0/2", "x", "-4", "1/"):
        with pytest.raises(ValueError, match="a window is"):
            Window.parse(text)
    with pytest.raises(ValueError, match="sink >= 0"):
        Window(4, sink=-1)


def test_a_tree_is_refused():
    runner = ModelRunner(tiny.family().target, 1, ROOM, window=Window(8))
    with pytest.raises(ValueError, match="chains"):
        runner.forward([0], [2], [1, 2], [1], [torch.ones(2, 2, dtype=torch.bool).tril()])
