"""SlotCache and RaggedBatch on their own: lengths, room, positions, masks."""

from __future__ import annotations

import pytest
import torch

from spin_core.decompose.needs import View
from spin_core.runtime import RaggedBatch, SlotCache


def test_write_puts_every_token_at_its_slot_and_entry_and_nowhere_else():
    cache = SlotCache(2, slots=3, kv_heads=2, max_len=5, head_dim=4)
    for layer in range(2):
        cache.k[layer].fill_(-1)
        cache.v[layer].fill_(-2)
    key, value = torch.rand(3, 2, 4), torch.rand(3, 2, 4)
    cache.write(1, torch.tensor([2, 0, 0]), torch.tensor([4, 0, 1]), key, value)
    assert (cache.k[0] == -1).all() and (cache.v[0] == -2).all()
    for n, (slot, entry) in enumerate([(2, 4), (0, 0), (0, 1)]):
        assert torch.equal(cache.k[1][slot, :, entry], key[n]) and torch.equal(cache.v[1][slot, :, entry], value[n])
    assert (cache.k[1] == -1).sum() == (3 * 5 - 3) * 2 * 4


def test_truncate_shortens_one_slot_and_never_lengthens():
    cache = SlotCache(1, slots=2, kv_heads=1, max_len=8, head_dim=2)
    cache.lengths = [5, 3]
    stored = cache.k[0].fill_(7).clone()
    cache.truncate(0, 2)
    cache.truncate(1, 7)
    assert cache.lengths == [2, 3]
    assert torch.equal(cache.k[0], stored), "rolling back is a change of length, nothing else"
    with pytest.raises(ValueError, match="slot 0: a length of -1 tokens is negative"):
        cache.truncate(0, -1)
    assert cache.lengths == [2, 3]


def test_room_is_exact():
    cache = SlotCache(1, slots=2, kv_heads=1, max_len=8, head_dim=2)
    cache.lengths = [5, 8]
    cache.check_room(0, 3)
    cache.check_room(1, 0)
    with pytest.raises(ValueError, match="slot 0 holds 5 tokens and has room for 8; 4 more"):
        cache.check_room(0, 4)
    with pytest.raises(ValueError, match="slot 1"):
        cache.check_room(1, 1)


def test_rings_keep_the_window_and_what_a_pass_may_add():
    cache = SlotCache(3, slots=2, kv_heads=1, max_len=40, head_dim=2, windows=[None, 6, 38], ahead=5)
    assert [k.shape[2] for k in cache.k] == [40, 11, 40] and cache.most == 5
    number = torch.arange(20.0)[:, None, None].expand(20, 1, 2)
    for first in range(0, 20, 5):
        cache.begin([1], [first], [first + 5])
        index = torch.arange(first, first + 5)
        for layer in range(3):
            cache.write(layer, torch.ones(5, dtype=torch.int64), index, number[index], number[index])
        cache.lengths[1] += 5
    assert cache.k[0][1, 0, :20, 0].tolist() == list(range(20))
    assert cache.k[1][1, 0, :, 0].tolist() == [11, 12, 13, 14, 15, 16, 17, 18, 19, 9, 10]
    with pytest.raises(ValueError, match="slot 1: its rings take 5 tokens at once, not 6"):
        cache.begin([1], [20], [26])
    cache.truncate(1, 15)
    assert cache.lengths[1] == 15, "tokens 10 to 14 are there, which the next token sees"
    cache.truncate(1, 14)
    assert cache.lengths[1] == 0, "token 9 has been overwritten: the text is read anew"


def test_a_chain_counts_on_from_its_prefix():
    batch = RaggedBatch.build(torch.arange(6), slots=[4, 1, 0], counts=[3, 1, 2], prefix=[0, 7, 2])
    assert batch.positions.tolist() == [0, 1, 2, 7, 2, 3]
    assert batch.entry_of.tolist() == [0, 1, 2, 7, 2, 3]
    assert batch.slot_of.tolist() == [4, 4, 4, 1, 0, 0]
    assert batch.starts == [0, 3, 4]


def test_a_tree_node_sits_at_its_depth_but_is_stored_in_order():
    #   0 -> 1 -> 3
    #     -> 2
    tree = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)
    batch = RaggedBatch.build(torch.arange(4), slots=[2], counts=[4], prefix=[10], ancestors=[tree])
    assert batch.positions.tolist() == [10, 11, 11, 12]
    assert batch.entry_of.tolist() == [10, 11, 12, 13]
    mask = View(batch).library_mask(0, torch.device("cpu"))
    assert mask[:, :10].all() and torch.equal(mask[:, 10:], tree)


def test_masks_are_made_only_where_a_plain_attention_would_be_wrong():
    batch = RaggedBatch.build(torch.arange(6), slots=[0, 1, 2], counts=[3, 1, 2], prefix=[0, 7, 2])
    first_chunk, single, later = (View(batch).library_mask(b, torch.device("cpu")) for b in range(3))
    assert first_chunk is None and single is None
    assert later.tolist() == [[True, True, True, False], [True, True, True, True]]


def test_counts_must_add_up():
    with pytest.raises(ValueError, match="add up to 3, but there are 4 tokens"):
        RaggedBatch.build(torch.arange(4), slots=[0, 1], counts=[1, 2], prefix=[0, 0])
