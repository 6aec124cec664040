"""Trees: which way of drawing children is lossless under which test, by exact enumeration; then whole verdicts."""

from __future__ import annotations

import pytest
import torch
from chain_cases import SAMPLED, as_lists, make_batch, params_list
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from spin_core.lab.lessons.l6_verify_kernel.rules import (
    ACCEPTED,
    BIASED,
    COUNT,
    DISTANCES,
    LOSSLESS,
    Q,
    Rule,
    measure,
    shuffled,
    without_replacement,
)
from spin_core.randomness import DRAFT, exponential_race
from spin_core.request import SamplingParams
from spin_core.sampling import SamplingBatch
from spin_core.draft.base import Draft
from spin_core.draft.tree import Proposal
from spin_core.verify import Tree, verify_chain, verify_tree


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_rules(name):
    assert measure(LOSSLESS[name])[0] < 1e-12


@pytest.mark.parametrize("name", BIASED)
def test_biased_rules_are_as_biased_as_the_reference(name):
    assert measure(BIASED[name])[0] == pytest.approx(DISTANCES[name], abs=1e-3)


def test_what_the_rules_accept():
    """As the reference: testing a drawn child as one-hot costs acceptance. Drawing without replacement wins some."""
    rate = {name: measure(rule)[1] for name, rule in LOSSLESS.items()}
    assert {name: rate[name] for name in ACCEPTED} == pytest.approx(ACCEPTED, abs=5e-3)
    assert rate["without replacement, Sequoia's rule"] > rate["independent, duplicates kept"]


def test_sequoias_rule_needs_the_order_of_the_draw():
    assert measure(Rule(shuffled(without_replacement), "without_replacement"))[0] > 0.05


weights = st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.2, 0.5, 1.0]), min_size=6, max_size=6)


@settings(max_examples=15, deadline=None)
@given(weights.filter(any), weights.filter(lambda w: sum(x > 0 for x in w) >= COUNT), st.sampled_from([*LOSSLESS]))
def test_lossless_for_any_distributions(p, q, name):
    """Zeros, and distributions that share nothing or everything, included."""
    p, q = (torch.tensor(x, dtype=torch.float64) for x in (p, q))
    assert measure(LOSSLESS[name], p / p.sum(), q / q.sum())[0] < 1e-9


def tree(parents: list[int], tokens: list[int], distributions: Tensor | None = None, way: str = "independent",
         rows=None) -> Tree:
    """One request's tree."""
    rows = None if rows is None else torch.tensor(rows)
    return Tree(torch.tensor(tokens), torch.tensor([0, len(tokens)]), distributions, rows, None, torch.tensor(parents),
                way)


def test_what_cannot_be_lossless_is_refused():
    distribution = Q.unsqueeze(0)
    with pytest.raises(ValueError, match="'deduplicated' cannot be verified: merging equal siblings"):
        tree([-1, -1], [1, 2], distribution, "deduplicated", [0, 0])
    with pytest.raises(ValueError, match="'beam' cannot be verified: known ways are independent, without"):
        tree([-1], [1], way="beam")
    with pytest.raises(ValueError, match="request 0: top_k children are no draw from their scores"):
        tree([-1, -1], [1, 2], distribution, "top_k", [0, 0])
    with pytest.raises(ValueError, match="equal siblings cannot have been drawn without_replacement"):
        tree([-1, 0, 0], [1, 2, 2], distribution, "without_replacement", [0, 0, 0])
    with pytest.raises(ValueError, match="every node has a proposal"):
        Tree(torch.tensor([1, 2]), torch.tensor([0, 2]), way="top_k", proposals=[[Proposal(0, -1)]])
    for parents in ([0], [-1, 2, 0], [-2]):
        with pytest.raises(ValueError, match="request 0: a parent is -1 or a node before its child"):
            tree(parents, [1] * len(parents))


# ---- verdicts

@given(params_list, st.data())
@settings(max_examples=40, deadline=None)
def test_a_chain_is_a_tree(params, data):
    """Draw by draw the verdict of verify_chain: ragged, greedy and sampling, filters, subsets, bad rows."""
    counts = [data.draw(st.integers(0, 4)) for _ in params]
    logits, draft = make_batch(counts, 13, data.draw(st.integers(0, 10**6)), data.draw(st.booleans()))
    for row in data.draw(st.lists(st.integers(0, max(0, len(logits) - 1)), max_size=1 if params else 0)):
        logits[row, 0] = torch.nan
    sampling, position = SamplingBatch.from_params(params), torch.arange(len(params)) * 7
    expected = verify_chain(logits, draft, sampling, position)
    way = data.draw(st.sampled_from(["independent", "without_replacement"]))
    chains = Tree(draft.tokens, draft.cu, draft.probs, draft.prob_row, draft.ids, way=way)
    got = verify_tree(logits, chains, sampling, position)
    assert torch.equal(got.tokens, expected.tokens) and torch.equal(got.failed, expected.failed)
    assert torch.equal(got.num_accepted, expected.num_accepted)
    assert got.path.shape == (len(params), max(counts, default=0))
    for path, accepted in zip(got.path.tolist(), expected.num_accepted.tolist()):
        assert path == [*range(accepted), *[-1] * (len(path) - accepted)]


def test_greedy_by_hand():
    """The target continues 3 1 and then 2: down the second child, its third, and what lies beside is not needed."""
    parents, tokens = [-1, -1, 1, 1, 1, 0], [0, 3, 5, 4, 1, 2]
    right = {-1: 3, 1: 1, 4: 2}
    logits = torch.stack([torch.eye(6)[right[node]] if node in right else torch.full((6,), torch.nan)
                          for node in range(-1, 6)])
    draft = tree(parents, tokens, way="top_k")
    verdict = verify_tree(logits, draft, SamplingBatch.from_params([SamplingParams()]), torch.tensor([5]))
    assert as_lists(verdict) == [[3, 1, 2]] and verdict.path.tolist() == [[1, 4]]
    logits[5] = torch.nan
    verdict = verify_tree(logits, draft, SamplingBatch.from_params([SamplingParams()]), torch.tensor([5]))
    assert as_lists(verdict) == [None] and verdict.path.tolist() == [[-1, -1]]


def test_a_request_fails_alone():
    logits = torch.zeros(4, 6)
    logits[2] = -torch.inf
    draft = Tree(torch.tensor([1, 2]), torch.tensor([0, 1, 2]), parents=torch.tensor([-1, -1]), way="top_k")
    verdict = verify_tree(logits, draft, SamplingBatch.from_params([SAMPLED] * 2), torch.tensor([0, 0]))
    assert verdict.failed.tolist() == [False, True]


def test_each_verifier_takes_its_own_kind_and_distributions_must_be_there():
    """Siblings that were taken for a chain would be tested with the wrong q."""
    siblings = tree([-1, -1], [1, 2], torch.full((1, 6), 1 / 6), "without_replacement", [0, 0])
    sampling, position = SamplingBatch.from_params([SAMPLED]), torch.tensor([3])
    with pytest.raises(ValueError, match="verify_chain: got a Tree"):
        verify_chain(torch.zeros(3, 6), siblings, sampling, position)
    with pytest.raises(ValueError, match="verify_tree: got a Draft"):
        verify_tree(torch.zeros(2, 6), Draft.one_hot([[1]]), sampling, position)
    for distributions, rows in ((None, [0, -1]), (torch.full((1, 6), 1 / 6), [1, -1]), (None, [-2, -1])):
        with pytest.raises(ValueError, match="request 0: .* its row is -1 or one of the . distributions"):
            tree([-1, -1], [1, 2], distributions, rows=rows)
    with pytest.raises(ValueError, match="proposals of 1 requests for 2 trees"):
        Tree(torch.tensor([1, 2]), torch.tensor([0, 1, 2]), proposals=[[Proposal(0, -1)]])


def test_shapes_that_do_not_fit_are_refused():
    draft, sampling = tree([-1, -1], [1, 2], way="top_k"), SamplingBatch.from_params([SAMPLED])
    with pytest.raises(ValueError, match=r"2 nodes of 1 requests need 3 rows of logits, got \(2, 6\)"):
        verify_tree(torch.zeros(2, 6), draft, sampling, torch.tensor([0]))
    with pytest.raises(ValueError, match="1 sampling rows, 1 trees, 2 positions"):
        verify_tree(torch.zeros(3, 6), draft, sampling, torch.tensor([0, 0]))


# A binary tree of depth two over a table of logits: node 0 the committed text, node 1 + v behind token v.
VOCAB, REQUESTS = 4, 8000


def two_tokens(way: str, mistake: bool = False) -> float:
    """Chi-square of the first two tokens of many requests, each with a tree of two children and two for each."""
    generator = torch.Generator().manual_seed(1)
    p_logits, q_logits = (s * torch.randn(1 + VOCAB, VOCAB, generator=generator) for s in (1.0, 2.5))
    seed = torch.arange(REQUESTS)
    q = q_logits.softmax(-1)

    def draw(at: Tensor, base: int) -> Tensor:
        """Two children of each node ``at [R]``."""
        distribution, place = q[at], torch.full_like(seed, 3)
        first = exponential_race(distribution, seed, place, DRAFT, 2 * base)
        if way == "top_k":
            return distribution.topk(2).indices
        again = distribution.scatter(1, first.unsqueeze(1), 0.0) if way == "without_replacement" else distribution
        return torch.stack([first, exponential_race(again, seed, place, DRAFT, 2 * base + 1)], 1)

    top = draw(torch.zeros_like(seed), 0)
    below = [draw(1 + top[:, i], 1 + i) for i in range(2)]
    tokens = torch.cat([top, *below], 1)
    rows = torch.stack([torch.zeros_like(seed)] * 2 + [1 + top[:, 0]] * 2 + [1 + top[:, 1]] * 2, 1)
    rows = rows if way != "top_k" or mistake else torch.full_like(rows, -1)
    declared = "independent" if mistake else way
    draft = Tree(tokens.flatten(), 6 * torch.arange(REQUESTS + 1), q, rows.flatten(), None,
                 torch.tensor([-1, -1, 0, 0, 1, 1]).repeat(REQUESTS), declared)
    nodes = torch.cat([torch.zeros(REQUESTS, 1, dtype=torch.int64), 1 + top, torch.zeros_like(tokens[:, 2:])], 1)
    sampling = SamplingBatch.from_params([SAMPLED.with_(seed=s) for s in range(REQUESTS)])
    verdict = verify_tree(p_logits[nodes.flatten()], draft, sampling, torch.zeros_like(seed))
    first, second = verdict.tokens[:, 0], verdict.tokens[:, 1]
    p = p_logits.softmax(-1)
    missing = second < 0            # nothing accepted: the target goes on
    second = torch.where(missing, exponential_race(p[1 + first], seed, torch.full_like(seed, 99), 2), second)
    joint = (p[0].unsqueeze(-1) * p[1:]).flatten().double()
    seen = (first * VOCAB + second).bincount(minlength=VOCAB**2)
    return stats.chisquare(seen.numpy(), (joint / joint.sum() * REQUESTS).numpy()).pvalue


@pytest.mark.parametrize("way", ["independent", "without_replacement", "top_k"])
def test_draws_follow_the_distribution(way):
    assert two_tokens(way) > 1e-6


@pytest.mark.parametrize("way", ["without_replacement", "top_k"])
def test_chi_square_catches_the_wrong_rule(way):
    assert two_tokens(way, mistake=True) < 1e-9
