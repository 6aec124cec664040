"""The distribution is transformers' distribution, row by row, whatever the rows beside it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from spin_core.request import SamplingParams
from spin_core.sampling import SamplingBatch, probabilities

FILTERS = [
    dict(),
    dict(top_k=1), dict(top_k=5), dict(top_k=10**6),
    dict(top_p=0.9), dict(top_p=0.3), dict(top_p=1e-9), dict(top_p=1 - 1e-9),
    dict(min_p=0.05), dict(min_p=1.0),
    dict(top_k=20, top_p=0.8), dict(top_k=20, min_p=0.1), dict(top_p=0.95, min_p=0.02),
    dict(top_k=12, top_p=0.9, min_p=0.03),
]


def warped(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Transformers' own distribution for one row of logits ``[V]``."""
    scores = TemperatureLogitsWarper(params.temperature)(None, logits.unsqueeze(0))
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(None, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(None, scores)
    if params.min_p:
        scores = MinPLogitsWarper(params.min_p)(None, scores)
    return scores.softmax(-1).squeeze(0)


def distribution(logits: torch.Tensor, *params: SamplingParams) -> torch.Tensor:
    return probabilities(logits, SamplingBatch.from_params(list(params)))


def random_logits(rows: int, columns: int, seed: int, dtype=torch.float64) -> torch.Tensor:
    """Peaked as a language model's, with some tokens masked."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return logits.masked_fill(torch.rand(rows, columns, generator=generator) < 0.1, -torch.inf).to(dtype)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_distribution_equals_transformers_warpers(filters, temperature):
    params = SamplingParams(temperature=temperature, **filters)
    for columns in (3, 50, 1000):
        logits = random_logits(20, columns, seed=columns)
        expected = torch.stack([warped(row, params) for row in logits])
        torch.testing.assert_close(distribution(logits, *[params] * 20), expected, rtol=1e-12, atol=1e-15)
        single = distribution(logits.float(), *[params] * 20)
        assert single.dtype == torch.float32
        torch.testing.assert_close(single, expected.float(), rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("filters", [dict(), dict(top_k=3), dict(top_p=0.9), dict(min_p=0.1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_logits_that_a_type_can_hold_have_a_distribution_at_low_temperature(filters, dtype):
    most = torch.finfo(dtype).max
    logits = torch.tensor([[0.0, most, 1.0, -torch.inf], [most, most, -most, 0.0], [-most] * 4, [1.0, 2.0, 3.0, 4.0],
                           [1.0, torch.nan, 2.0, most]], dtype=dtype)
    found = distribution(logits, *[SamplingParams(temperature=0.5, **filters)] * 5)
    assert found[:3].tolist() == [[0, 1, 0, 0], [.5, .5, 0, 0], [.25] * 4] and found[4].isnan().all()
    assert torch.equal(found[3:4], distribution(logits[3:4], SamplingParams(temperature=0.5, **filters)))


@pytest.mark.parametrize("columns", [49152, 128256])
@pytest.mark.parametrize("temperature", [1.0, 4.0])     # peaked; a nucleus of half the vocabulary
def test_distribution_over_real_vocabularies(columns, temperature):
    logits = random_logits(1, columns, seed=0)
    for filters in (dict(), dict(top_k=50, top_p=0.9), dict(top_p=0.95), dict(min_p=0.01)):
        params = SamplingParams(temperature=temperature, **filters)
        torch.testing.assert_close(distribution(logits, params)[0], warped(logits[0], params), rtol=1e-9, atol=1e-15)


@given(st.lists(st.integers(-2, 2) | st.just(-10**9), min_size=1, max_size=12), st.sampled_from(FILTERS))
@settings(max_examples=300, deadline=None)
def test_ties_share_one_fate(scores, filters):
    """Equal logits get equal probability: transformers' choice is kept, and what is tied with its last."""
    logits = torch.tensor(scores, dtype=torch.float64).masked_fill(torch.tensor(scores) == -10**9, -torch.inf)
    if not logits.isfinite().any():
        return
    params = SamplingParams(temperature=1.0, **filters)
    p = distribution(logits.unsqueeze(0), params)[0]
    reference = warped(logits, params)
    lowest = logits[reference > 0].min()
    assert torch.equal(p > 0, (logits >= lowest) & logits.isfinite())
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)
    for value in logits.unique():
        assert p[logits == value].unique().numel() == 1
    if params.top_p == 1:       # only the nucleus lets a sort choose between equals
        torch.testing.assert_close(p, reference, rtol=1e-12, atol=0)


def test_the_nucleus_in_figures():
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]], dtype=torch.float64).log()
    for top_p, kept in ((0.4, 1), (0.6, 2), (0.8, 3), (0.95, 4)):
        p = distribution(logits, SamplingParams(temperature=1.0, top_p=top_p))
        expected = logits.exp() * (torch.arange(4) < kept)
        torch.testing.assert_close(p, expected / expected.sum())


def test_a_later_filter_sees_what_the_earlier_ones_left():
    """Of .4 .3 .2 .1, top-k 2 leaves .571 .429: one token now reaches top_p .5, which needs two without."""
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64).log()
    both = distribution(logits, SamplingParams(temperature=1.0, top_k=2, top_p=0.5))
    assert both.tolist() == [[1, 0, 0, 0]]
    assert int((distribution(logits, SamplingParams(temperature=1.0, top_p=0.5)) > 0).sum()) == 2


def test_greedy_rows_are_one_hot_at_the_first_largest_logit():
    logits = torch.tensor([[1.0, 3.0, 3.0], [-torch.inf, -5.0, -6.0]])
    p = distribution(logits, SamplingParams(top_k=2, top_p=0.5, min_p=0.5), SamplingParams())
    assert p.tolist() == [[0, 1, 0], [0, 1, 0]]


@pytest.mark.parametrize("temperature", [1e-3, 1e-20, 1e-40, 5e-324])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_vanishing_temperature_is_greedy(temperature, dtype):
    logits = torch.tensor([[40.0, 39.0, -1e4], [-3.0, -2.0, -torch.inf]], dtype=dtype)
    p = distribution(logits, *[SamplingParams(temperature=temperature)] * 2)
    assert p.tolist() == [[1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_read_exactly(dtype):
    logits = random_logits(4, 100, seed=0, dtype=dtype)
    params = [SamplingParams(temperature=0.7, top_p=0.9)] * 3 + [SamplingParams()]
    assert torch.equal(distribution(logits, *params), distribution(logits.float(), *params))


def test_rows_without_a_distribution_are_nan_and_harm_no_other():
    params = [SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m)
              for t in (0.0, 1.0) for k, p, m in ((0, 1.0, 0.0), (3, 0.9, 0.1))]
    good = random_logits(4, 8, seed=3)
    bad = torch.stack([torch.full((8,), -torch.inf), good[1], good[2]]).double()
    bad[1, 5], bad[2, 2] = torch.nan, torch.inf
    for row in bad:
        mixed = distribution(torch.cat([row.expand(4, -1), good]), *params, *params)
        assert mixed[:4].isnan().all()
        assert torch.equal(mixed[4:], distribution(good, *params))


row_params = st.builds(SamplingParams, temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
                       top_k=st.sampled_from([0, 0, 1, 3, 99]), top_p=st.sampled_from([1.0, 1.0, 0.2, 0.9]),
                       min_p=st.sampled_from([0.0, 0.0, 0.05, 0.7]), seed=st.integers(0, 2**63 - 1))


@given(st.lists(row_params, min_size=1, max_size=8), st.data())
@settings(max_examples=100, deadline=None)
def test_a_distribution_does_not_depend_on_the_rows_beside_it(params, data):
    logits = random_logits(len(params), 23, seed=data.draw(st.integers(0, 10**6)), dtype=torch.float32)
    chosen = torch.tensor(data.draw(st.lists(st.integers(0, len(params) - 1), min_size=1)))
    batch = SamplingBatch.from_params(params)
    alone = probabilities(logits[chosen], batch.rows(chosen))
    assert torch.equal(probabilities(logits, batch)[chosen], alone)


def test_the_logits_are_left_as_they_were():
    logits = random_logits(3, 50, seed=1, dtype=torch.float32)
    before = logits.clone()
    distribution(logits, SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=2))
    distribution(logits, *[SamplingParams(temperature=1.0, top_k=2, top_p=0.5, min_p=0.1)] * 3)
    assert torch.equal(logits, before)


def test_sampling_batch_carries_every_parameter():
    params = [SamplingParams(temperature=0.5, top_k=4, top_p=0.75, min_p=0.25, seed=2**63 - 1),
              SamplingParams(seed=0)]
    batch = SamplingBatch.from_params(params)
    assert len(batch) == 2 and batch.greedy.tolist() == [False, True]
    for name in ("temperature", "top_k", "top_p", "min_p", "seed"):
        assert getattr(batch, name).tolist() == [getattr(p, name) for p in params]
        assert getattr(batch.rows(torch.tensor([1, 0, 0])), name).tolist() == [
            getattr(params[i], name) for i in (1, 0, 0)]
    assert len(SamplingBatch.from_params([])) == 0


def test_rows_must_match():
    with pytest.raises(ValueError, match=r"1 sampling rows for logits \(2, 5\)"):
        distribution(torch.zeros(2, 5), SamplingParams())
