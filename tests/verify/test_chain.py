"""The verdict: against a plain loop, alone and in company, at the edges and in trouble."""

from __future__ import annotations

import pytest
import torch
from chain_cases import SAMPLED, as_lists, make_batch, one_by_one, params_list
from hypothesis import given, settings
from hypothesis import strategies as st

from spin_core.draft.base import Draft
from spin_core.randomness import RESIDUAL, exponential_race
from spin_core.request import SamplingParams
from spin_core.sampling import SamplingBatch, probabilities
from spin_core.verify import chain, verify_chain


def verify(logits, draft, params, position=None):
    position = [10 + b for b in range(len(params))] if position is None else position
    position = torch.tensor(position, dtype=torch.int64)
    return verify_chain(logits, draft, SamplingBatch.from_params(params), position)


@given(params_list, st.data())
@settings(max_examples=100, deadline=None)
def test_verdict_equals_a_plain_loop(params, data):
    """Ragged; greedy beside sampling, one-hot beside sampled drafts; whole or subset vocabulary; bad rows."""
    counts = [data.draw(st.integers(0, 5)) for _ in params]
    vocab = data.draw(st.sampled_from([2, 7, 29]))
    seed, subset = data.draw(st.integers(0, 10**6)), data.draw(st.booleans())
    logits, draft = make_batch(counts, vocab, seed, subset)
    for row in data.draw(st.lists(st.integers(0, max(0, len(logits) - 1)), max_size=2 if params else 0)):
        logits[row, 0] = torch.nan
    for row in data.draw(st.lists(st.integers(0, max(0, len(logits) - 1)), max_size=2 if params else 0)):
        logits[row] = -torch.inf
    position = [data.draw(st.integers(0, 10**5)) for _ in params]
    verdict = verify(logits, draft, params, position)
    assert as_lists(verdict) == one_by_one(logits, draft, params, position)
    assert verdict.tokens.shape == (len(params), max(counts, default=0) + 1)


@given(params_list.filter(len), st.data())
@settings(max_examples=50, deadline=None)
def test_verdict_does_not_depend_on_batch_mates_or_their_order(params, data):
    counts = [data.draw(st.integers(0, 4)) for _ in params]
    logits, draft = make_batch(counts, 13, data.draw(st.integers(0, 10**6)), data.draw(st.booleans()))
    position = [data.draw(st.integers(0, 10**4)) for _ in params]
    together = as_lists(verify(logits, draft, params, position))
    chosen = data.draw(st.permutations(range(len(params))))[:data.draw(st.integers(1, len(params)))]
    start = draft.cu.tolist()
    drafts = torch.cat([torch.arange(start[b], start[b + 1]) for b in chosen])
    rows = torch.cat([torch.arange(start[b] + b, start[b + 1] + b + 1) for b in chosen])
    fewer = Draft(draft.tokens[drafts], torch.tensor([0] + [counts[b] for b in chosen]).cumsum(0),
                  draft.probs, draft.prob_row[drafts], draft.ids)
    apart = verify(logits[rows], fewer, [params[b] for b in chosen], [position[b] for b in chosen])
    assert as_lists(apart) == [together[b] for b in chosen]


@pytest.mark.parametrize("vocab, batch", [(111, 1), (111, 7), (111, 99), (4097, 99), (32000, 7), (49152, 7),
                                          (128256, 1), (128256, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_verdict_over_real_vocabularies(vocab, batch, dtype):
    counts = [(3 * b + 1) % 5 for b in range(batch)]
    params = [SamplingParams(temperature=(0.0, 1.0, 0.7)[(b + batch) % 3], top_k=20 * (b % 4 == 2), seed=b)
              for b in range(batch)]
    logits, draft = make_batch(counts, vocab, seed=vocab + batch, dtype=dtype)
    position = list(range(batch))
    assert as_lists(verify(logits, draft, params, position)) == one_by_one(logits, draft, params, position)


def test_greedy_by_hand():
    """Argmax 3 1 2 0: a draft is right until its first miss, which the argmax replaces; then a bonus."""
    chain_of = torch.nn.functional.one_hot(torch.tensor([3, 1, 2, 0]), 5).float()
    drafts = [[3, 1, 2], [3, 1, 4], [0, 1, 2], [3], []]
    logits = torch.cat([chain_of[:len(d) + 1] for d in drafts])
    verdict = verify(logits, Draft.one_hot(drafts), [SamplingParams()] * 5)
    assert as_lists(verdict) == [[3, 1, 2, 0], [3, 1, 2], [3], [3, 1], [3]]
    assert verdict.num_accepted.tolist() == [3, 2, 0, 1, 0]
    assert not verdict.failed.any()


def test_a_greedy_batch_pays_for_no_distribution_and_no_noise(monkeypatch):
    def unwanted(*_):
        raise AssertionError("a greedy batch needs only an argmax")

    for name in ("probabilities", "uniform", "exponential_race"):
        monkeypatch.setattr(chain, name, unwanted)
    logits, draft = make_batch([2, 0, 3], 11, seed=0)
    params = [SamplingParams(seed=5)] * 3
    assert as_lists(verify(logits, draft, params)) == one_by_one(logits, draft, params, [10, 11, 12])


@pytest.mark.parametrize("u", [0.0, 1 - 2**-24])
def test_a_token_the_target_excludes_is_never_accepted(monkeypatch, u):
    """Even at u = 0, and even where q is zero too; a token of p = q > 0 is accepted at the largest u."""
    monkeypatch.setattr(chain, "uniform", lambda seed, *_: torch.full(seed.shape, u))
    logits = torch.tensor([[0.0, -torch.inf, 0.0]]).repeat(2, 1)
    for q, token, accepted in (([0.5, 0.5, 0.0], 1, 0), ([1.0, 0.0, 0.0], 1, 0), ([0.5, 0.0, 0.5], 2, 1)):
        draft = Draft(torch.tensor([token]), torch.tensor([0, 1]), torch.tensor([q]), torch.tensor([0]))
        verdict = verify(logits, draft, [SAMPLED])
        assert verdict.num_accepted.tolist() == [accepted]
        assert 1 not in verdict.tokens[0, accepted:].tolist()


def test_outside_the_draft_vocabulary_q_is_zero(monkeypatch):
    """So a token from there passes wherever p allows it, its id below, between or above the vocabulary's."""
    monkeypatch.setattr(chain, "uniform", lambda seed, *_: torch.full(seed.shape, 1 - 2**-24))
    ids, q = torch.tensor([1, 3]), torch.tensor([[1.0, 1.0]])
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0, -torch.inf, 0.0]]).repeat(2, 1)
    fates = [int(verify(logits, Draft(torch.tensor([token]), torch.tensor([0, 1]), q, torch.tensor([0]), ids),
                        [SAMPLED]).num_accepted) for token in range(6)]
    assert fates == [1, 0, 1, 0, 0, 1]


def test_a_residual_without_mass_falls_back_to_p(monkeypatch):
    """p = q rejected all the same, as rounding can: the token comes from p, not from behind its end."""
    monkeypatch.setattr(chain, "accepts", lambda u, p, q: torch.zeros_like(p, dtype=torch.bool))
    n = 500
    logits = torch.tensor([0.4, 0.6, 0.0]).log().repeat(2 * n, 1)
    draft = Draft(torch.ones(n, dtype=torch.int64), torch.arange(n + 1), logits[:1].softmax(-1),
                  torch.zeros(n, dtype=torch.int64))
    params = [SAMPLED.with_(seed=i) for i in range(n)]
    verdict = verify(logits, draft, params, [7] * n)
    p = logits[:n].softmax(-1)
    assert verdict.num_accepted.sum() == 0 and not verdict.failed.any()
    assert torch.equal(verdict.tokens[:, 0], exponential_race(p, torch.arange(n), torch.full((n,), 7), RESIDUAL))
    assert set(verdict.tokens[:, 0].tolist()) == {0, 1}


def test_a_residual_is_drawn_from_where_p_exceeds_q():
    p, q = torch.tensor([[0.5, 0.3, 0.2, 0.0]]), torch.tensor([[0.1, 0.6, 0.1, 0.2]])
    torch.testing.assert_close(chain.residual(p, q), torch.tensor([[0.4, 0.0, 0.1, 0.0]]))
    assert torch.equal(chain.residual(p, torch.zeros_like(q)), p)      # the bonus
    assert torch.equal(chain.residual(p, p.clone()), p)


@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED, SAMPLED.with_(top_k=2),
                                    SAMPLED.with_(top_p=0.5)])
@pytest.mark.parametrize("trouble", ["nan", "inf", "nothing"])
def test_a_request_fails_alone_and_only_on_rows_its_verdict_needs(params, trouble):
    """At each row the target allows one token, so fates are certain; rows 0-2 are drafted, 3 is the bonus."""
    right = [4, 1, 3, 2]
    certain = torch.full((4, 6), -torch.inf)
    certain[range(4), right] = 0.0
    bad_row = certain[0].clone()
    if trouble == "nothing":
        bad_row[:] = -torch.inf
    else:
        bad_row[5] = float(trouble)
    for drafted, accepted in ((right[:3], 3), ([4, 1, 0], 2), ([0, 1, 3], 0)):
        draft = Draft.one_hot([right[:3], drafted, right[:3], []])
        for bad in range(4):
            logits = torch.cat([certain, certain, certain, certain[:1]])
            logits[4 + bad] = bad_row
            verdict = verify(logits, draft, [params, params, SamplingParams(), SAMPLED])
            assert verdict.failed.tolist() == [False, bad <= accepted, False, False]
            assert as_lists(verdict) == [right, None if bad <= accepted else right[:accepted + 1], right, [4]]


def test_a_drafter_without_a_distribution_costs_speed_but_not_the_distribution():
    """NaN in q: the draft is rejected whatever it is, and its place is drawn from p."""
    n, p = 200, torch.tensor([0.2, 0.5, 0.3])
    draft = Draft(torch.ones(n, dtype=torch.int64), torch.arange(n + 1), torch.full((1, 3), torch.nan),
                  torch.zeros(n, dtype=torch.int64))
    verdict = verify(p.log().repeat(2 * n, 1), draft, [SAMPLED.with_(seed=i) for i in range(n)], [3] * n)
    assert verdict.num_accepted.sum() == 0
    expected = exponential_race(p.log().softmax(-1).expand(n, -1), torch.arange(n), torch.full((n,), 3), RESIDUAL)
    assert torch.equal(verdict.tokens[:, 0], expected)


def test_nothing_drafted_is_plain_sampling():
    logits, _ = make_batch([0] * 5, 50, seed=4)
    params = [SAMPLED.with_(seed=i) for i in range(4)] + [SamplingParams()]
    verdict = verify(logits, Draft.empty(5), params)
    p = probabilities(logits, SamplingBatch.from_params(params))
    plain = exponential_race(p, torch.tensor([0, 1, 2, 3, 0]), torch.arange(5) + 10, RESIDUAL)
    assert torch.equal(verdict.tokens, plain.unsqueeze(-1))     # a greedy distribution leaves its race no choice


def test_no_requests():
    verdict = verify(torch.zeros(0, 9), Draft.empty(0), [])
    assert verdict.tokens.shape == (0, 1) and len(verdict.num_accepted) == len(verdict.failed) == 0


def test_inputs_are_left_as_they_were():
    logits, draft = make_batch([3, 2], 9, seed=8, subset=True)
    before = [x.clone() for x in (logits, draft.tokens, draft.cu, draft.probs, draft.prob_row, draft.ids)]
    verify(logits, draft, [SAMPLED, SamplingParams()])
    for old, new in zip(before, (logits, draft.tokens, draft.cu, draft.probs, draft.prob_row, draft.ids)):
        assert torch.equal(old, new)


def test_shapes_that_do_not_fit_are_refused():
    logits, draft = make_batch([3, 2], 9, seed=8)
    with pytest.raises(ValueError, match=r"5 drafted tokens of 2 requests need 7 rows .* got \(6, 9\)"):
        verify(logits[1:], draft, [SAMPLED] * 2)
    with pytest.raises(ValueError, match="2 sampling rows, 2 drafts, 1 positions"):
        verify(logits, draft, [SAMPLED] * 2, [0])
    with pytest.raises(ValueError, match="3 sampling rows, 2 drafts"):
        verify(torch.zeros(8, 9), draft, [SAMPLED] * 3)
