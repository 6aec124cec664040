"""Keeping the accepted path: gather and kernel against a plain loop, and the text that follows."""

from __future__ import annotations

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spin_core.draft.tree import ancestor_mask
from spin_core.runtime import ModelRunner, SlotCache
from spin_core.kv.compact import compact

SLOTS, ROOM = 5, 24


def store(seed: int, dim: int = 6) -> SlotCache:
    """Random entries."""
    made, generator = SlotCache(2, SLOTS, 3, ROOM, dim), torch.Generator().manual_seed(seed)
    for layer in made.k + made.v:
        layer.copy_(torch.randn(layer.shape, generator=generator))
    return made


@st.composite
def moves(draw) -> tuple[list[int], list[int], list[list[int]]]:
    slots = draw(st.lists(st.integers(0, SLOTS - 1), min_size=1, unique=True))
    bases = [draw(st.integers(0, 9)) for _ in slots]
    paths = [sorted(draw(st.sets(st.integers(0, ROOM - base - 1), max_size=7))) for base in bases]
    return slots, bases, paths


def by_hand(made: SlotCache, slots, bases, paths) -> list[torch.Tensor]:
    out = [layer.clone() for layer in made.k + made.v]
    for layer, before in zip(out, made.k + made.v):
        for slot, base, path in zip(slots, bases, paths):
            for i, node in enumerate(path):
                layer[slot, :, base + i] = before[slot, :, base + node]
    return out


@settings(max_examples=40, deadline=None)
@given(moves())
def test_accepted_nodes_move_up_and_nothing_else_moves(moving):
    made = store(1)
    states = made.k[0][:, 0].clone()
    expected, expected_states = by_hand(made, *moving), states.clone()
    for slot, base, path in zip(*moving):
        expected_states[slot, base:base + len(path)] = states[slot, [base + node for node in path]]
    compact(made, *moving, states)
    assert all(torch.equal(a, b) for a, b in zip(made.k + made.v, expected))
    assert torch.equal(states, expected_states)


@pytest.mark.parametrize("dim", [8, 6])
def test_the_kernel_moves_the_same(dim):
    kernel = pytest.importorskip("spin_core.kv.compact_kernel")
    moving = [3, 0, 4], [5, 0, 9], [[1, 2, 5, 6, 9], [3], [0, 2]]
    made = store(2, dim)
    expected = by_hand(made, *moving)
    kernel.compact(made, *moving)
    assert all(torch.equal(a, b) for a, b in zip(made.k + made.v, expected))


@pytest.mark.parametrize("path", [[1, 1], [2, 0], [-1], [0, ROOM - 2]])
def test_impossible_paths_are_refused_before_anything_moves(path):
    made = store(3)
    before = [layer.clone() for layer in made.k + made.v]
    with pytest.raises(ValueError, match="slot 2: accepted nodes .* do not ascend within 24 entries"):
        compact(made, [0, 2], [1, 3], [[1, 2], path])
    assert all(torch.equal(a, b) for a, b in zip(made.k + made.v, before))


def test_what_follows_a_kept_path_is_what_follows_its_text():
    target = tiny.family().target
    runner = ModelRunner(target, 2, ROOM, keep_states=True)
    runner.forward([1], [3], [5, 9, 2], [])
    nodes, parents, path = [7, 8, 30, 1, 4], [-1, -1, 1, 1, 3], [1, 3, 4]
    runner.forward([1], [5], nodes, [], [ancestor_mask(parents)])
    runner.keep([1], [3], [path])
    runner.cache.truncate(1, 6)
    text = [5, 9, 2, 8, 1, 4]
    assert torch.allclose(runner.forward([1], [1], [12], [0])[0], tiny.logits(target, [*text, 12])[-1], atol=1e-12)
    plain = ModelRunner(target, 2, ROOM, keep_states=True)
    plain.forward([1], [6], text, [])
    assert torch.allclose(runner.states[1, :6], plain.states[1, :6], atol=1e-12)


@pytest.mark.parametrize("read", [0, 1, 3])
def test_the_ancestor_mask(read):
    mask = ancestor_mask([-1, 0, -1, 2, 1], read)
    sees = [set(row.nonzero().flatten().tolist()) for row in mask]
    text = set(range(read))
    assert sees[:read] == [set(range(i + 1)) for i in range(read)]
    above = [{0}, {0, 1}, {2}, {2, 3}, {0, 1, 4}]
    assert sees[read:] == [text | {read + node for node in nodes} for nodes in above]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.sampled_from(["per-request", "padded", "decomposed"]))
def test_a_tree_read_level_by_level_is_the_tree_read_at_once(choices, strategy):
    """A drafter's way: nodes whose ancestors are in the cache already, beside a chain of another request."""
    target = tiny.family().target
    parents, level = [], [-1]
    for start in range(0, len(choices), 3):
        fathers, level = level, []
        for choice in choices[start:start + 3]:
            level.append(len(parents))
            parents.append(fathers[choice % len(fathers)])
    nodes = [(7 * i + 3) % tiny.VOCAB for i in range(len(parents))]
    runner = ModelRunner(target, 3, 40, verification=strategy)
    runner.forward([2, 0], [4, 2], [5, 9, 2, 1, 3, 3], [])
    whole = ancestor_mask(parents)
    out = []
    for start in range(0, len(parents), 3):
        stop = min(start + 3, len(parents))
        logits = runner.forward([2, 0], [stop - start, 1], nodes[start:stop] + [6], list(range(stop - start)),
                                [whole[start:stop, :stop], None])
        out += logits
    runner.cache.truncate(2, 4)
    runner.forward([2], [len(nodes)], nodes, [], [whole])
    for node, row in enumerate(out):
        path, at = [], node
        while at >= 0:
            path, at = [nodes[at], *path], parents[at]
        assert torch.allclose(row, tiny.logits(target, [5, 9, 2, 1, *path])[-1], atol=1e-10)
