"""Shapes, their best ones, and the union of several drafters' trees."""

from __future__ import annotations

import itertools
import random
from functools import lru_cache

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spin_core.draft import CompositeDrafter, NgramDrafter
from spin_core.draft.grow import Grown
from spin_core.draft.shape import Shape, expansion, parse
from spin_core.draft.tree import depths
from spin_core.draft.trees import merge
from spin_core.lab.rivals.vote import VoteDrafter
from spin_core.lab.simulate.best_shape import best_shape
from spin_core.engine import Engine
from spin_core.request import Request, SamplingParams


def test_an_expansion_is_what_the_paper_draws():
    shape = expansion([2, 1, 2])
    assert shape.parents == (-1, -1, 0, 1, 2, 2, 3, 3) and shape.depth == 3
    assert shape.children == [[2], [3], [4, 5], [6, 7], [], [], [], [], [0, 1]]
    assert len(expansion([1, 1, 3, 1, 1, 1, 1, 1]).parents) == 2 + 3 * 6
    assert str(shape) == "2,1,2" and parse("2,1,2") == shape


@given(st.lists(st.integers(0, 100), max_size=12))
def test_any_tree_is_read_back_from_its_name(numbers):
    parents: list[int] = []
    for number in numbers:              # level by level: no parent before the last one's
        choices = range(parents[-1] if parents else -1, len(parents))
        parents.append(choices[number % len(choices)])
    shape = Shape(tuple(parents))
    if parents:
        assert parse(str(shape)) == shape
    for depth, nodes in ((2, 99), (99, 3), (0, 5), (1, 0)):
        cut = shape.cut(depth, nodes)
        assert cut.depth <= depth and len(cut.parents) <= nodes and cut.parents == shape.parents[:len(cut.parents)]
        # nothing that would have fitted was left out
        assert len(cut.parents) == min(nodes, sum(level < depth for level in shape.levels))


def expected(parents: tuple[int, ...], rates: list[float]) -> float:
    """Tokens per verification of a shape: the sum over nodes of the probability that they are accepted."""
    reach, seen = [], {}
    for parent in parents:
        rank = seen[parent] = seen.get(parent, -1) + 1
        reach.append((reach[parent] if parent >= 0 else 1.0) * (rates[rank] if rank < len(rates) else 0.0))
    return 1 + sum(reach)


@lru_cache
def all_shapes(nodes: int) -> list[tuple[int, ...]]:
    """Every tree of so many nodes, level by level."""
    if nodes == 0:
        return [()]
    return [(*shape, parent) for shape in all_shapes(nodes - 1) for parent in range(max(shape, default=-1), nodes - 1)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=3), st.integers(1, 6), st.integers(1, 4))
def test_the_best_shape_is_the_best_of_all(weights, nodes, depth):
    rates = [w / max(1.0, sum(weights)) for w in weights]
    shape, value = best_shape(rates, nodes, depth)
    assert value == pytest.approx(expected(shape.parents, rates))
    assert shape.depth <= depth and len(shape.parents) <= nodes
    best = max(expected(p, rates) for p in all_shapes(nodes) if max(depths(list(p))) < depth or depth >= nodes)
    assert value == pytest.approx(best, abs=1e-9) or value > best       # fewer nodes may be all that is of use


def test_rates_that_cannot_be_are_refused():
    for rates in ([0.7, 0.4], [-0.1], [float("nan")]):
        with pytest.raises(ValueError, match="best_shape: rates"):
            best_shape(rates, 4, 3)


# ---- the union

def grown(paths: list[list[int]], row: int = -1) -> Grown:
    """The trie of these paths, drawn in their order."""
    out, known = Grown(), {}
    for level in range(max(map(len, paths))):
        for path in paths:
            if level < len(path) and tuple(path[:level + 1]) not in known:
                known[tuple(path[:level + 1])] = len(out.tokens)
                out.proposals.append((len(out.tokens), row))
                out.tokens.append(path[level])
                out.parents.append(known.get(tuple(path[:level]), -1))
    return out


def paths_of(tokens: list[int], parents: list[int]) -> set[tuple[int, ...]]:
    out: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents):
        out.append((*(out[parent] if parent >= 0 else ()), token))
    assert len(set(out)) == len(out), "a path is there once"
    return set(out)


words = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(words, words, st.booleans())
def test_the_union_holds_every_path_once_and_remembers_who_proposed_it(a, b, drawn):
    parts = [grown(a, 0 if drawn else -1), grown(b, 0 if drawn else -1)]
    tokens, parents, proposals = merge(parts, [0, 5], 99)
    prefixes = [{tuple(p[:i + 1]) for p in paths for i in range(len(p))} for paths in (a, b)]
    assert paths_of(tokens, parents) == prefixes[0] | prefixes[1]
    assert len(proposals) == len(prefixes[0]) + len(prefixes[1]), "each drafter's drawing is tested"
    assert all(p.row == (5 * p.drafter if drawn else -1) for p in proposals)
    assert {p.drafter for p in proposals} == {0, 1}


@settings(max_examples=40, deadline=None)
@given(words, words, st.integers(1, 8))
def test_a_budget_keeps_the_beginning(a, b, budget):
    parts = [grown(a, 0), grown(b, 0)]
    everything = merge(parts, [0, 1], 99)
    tokens, parents, proposals = merge(parts, [0, 1], budget)
    assert len(tokens) == min(budget, len(everything[0]))
    assert tokens == everything[0][:len(tokens)] and parents == everything[1][:len(tokens)]
    assert proposals == everything[2][:len(proposals)]


def test_one_drafters_nodes_continue_where_the_others_lead():
    """a b from one, a c from the other: one a, with both children."""
    tokens, parents, proposals = merge([grown([[1, 2]]), grown([[1, 3]])], [0, 0], 9)
    assert (tokens, parents) == ([1, 2, 3], [-1, 0, 0])
    assert proposals == [(0, -1, 0), (0, -1, 1), (1, -1, 0), (2, -1, 1)]


def test_members_are_told_apart_in_the_trace_and_draw_with_noise_of_their_own():
    engine = Engine(tiny.family(), "tree:near,same:2,1", 2, max_batch=1, max_len=60)
    engine.generate([[4, 7, 1]], SamplingParams(max_new_tokens=30, temperature=0.3))
    who = {tuple(names) for e in engine.trace.events if e.tree for names in e.tree["drafters"]}
    assert {("near",), ("same",), ("near", "same")} <= who


@pytest.mark.parametrize("drawing", ["independent", "without_replacement"])
def test_distributions_are_those_the_nodes_were_drawn_from(drawing):
    """Of every proposal: the row of its distribution is the drafter's distribution behind the node's parent."""
    engine = Engine(tiny.family(), f"tree:near,subset:2,2:{drawing}", 2, max_batch=2, max_len=60)
    drafter = engine.get_drafter(engine.drafter)
    requests = [Request([3, 8, 5], SamplingParams(temperature=0.8, seed=4), gamma=2, slot=0),
                Request([1] * 7, SamplingParams(temperature=1.3, seed=5), gamma=2, slot=1)]
    tree = drafter.propose(requests, [2, 2])
    models = [engine.family.drafters[name] for name in tree.drafters]
    for request, (parents, tokens, proposals) in zip(requests, tree.requests()):
        assert {p.drafter for p in proposals} == {0, 1}
        for proposal in proposals:
            path, node = [], parents[proposal.node]
            while node >= 0:
                path, node = [tokens[node], *path], parents[node]
            source = models[proposal.drafter]
            q = (tiny.logits(source.model, request.ids + path)[-1] / request.params.temperature).softmax(-1)
            distribution = tree.distribution(tokens[proposal.node], proposal.row, tiny.VOCAB)
            if source.ids is None:
                assert torch.allclose(distribution, q, atol=1e-9)
            else:
                assert torch.allclose(distribution[source.ids], q, atol=1e-9)
                assert distribution.sum().item() == pytest.approx(1)


def test_greedy_children_are_the_likeliest():
    engine = Engine(tiny.family(), "tree:near:3,1", 2, max_batch=1, max_len=60)
    drafter = engine.get_drafter(engine.drafter)
    tree = drafter.propose([Request([3, 8, 5], SamplingParams(), gamma=2, slot=0)], [2])
    best = tiny.logits(engine.family.drafters["near"].model, [3, 8, 5])[-1].topk(3).indices.tolist()
    assert tree.tokens[:3].tolist() == best and tree.prob_row.tolist() == [-1] * 6


def test_shapes_by_rank_are_cheap_to_find():
    rng = random.Random(0)
    rates = sorted((rng.random() for _ in range(8)), reverse=True)
    rates = [r / sum(rates) * 0.9 for r in rates]
    values = [best_shape(rates, nodes, 8)[1] for nodes in (1, 4, 16, 48)]
    assert values == sorted(values) and values[0] == pytest.approx(1 + rates[0])
    assert all(a < b for a, b in itertools.pairwise(values))


def test_a_shape_as_deep_as_it_has_nodes_is_found_and_no_node_is_an_error():
    shape, expected = best_shape([.9], 250, 10**6)
    assert shape.depth == 250 and expected == pytest.approx((1 - .9 ** 251) / .1)
    for nodes, depth in ((0, 3), (3, 0), (-1, 2)):
        with pytest.raises(ValueError, match="at least one node and one level"):
            best_shape([.5], nodes, depth)


@pytest.mark.parametrize("name", ["tree:none:2", "tree:near:2,1:independent:²", "vote:none,near"])
def test_members_that_never_draft_and_numbers_that_are_none_are_refused(name):
    with pytest.raises(ValueError, match="none|too many fields"):
        Engine(tiny.family(), name)


def test_trees_are_no_part_of_compositions_and_votes():
    tree = Engine(tiny.family(), "tree:near:2,1").get_drafter("tree:near:2,1")
    for build in (lambda: CompositeDrafter(NgramDrafter(), tree), lambda: VoteDrafter([NgramDrafter(), tree])):
        with pytest.raises(ValueError, match="chains"):
            build()
