"""The exact distribution against brute force, the test against samples with and without a bias, a biased drafter."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tiny
import torch

from spin_core.engine import Engine
from spin_core.lab.lessons.l1_speculation.distribution import disguise, distribution_test, joint_distribution
from spin_core.request import SamplingParams

PARAMS = SamplingParams(temperature=1.0, top_k=3, max_new_tokens=3, stop_ids=())
PROMPT = [5, 9, 20]


def test_joint_distribution_is_the_product_of_conditional_ones():
    family = tiny.family()
    distribution = joint_distribution(family, PROMPT, PARAMS, 2)
    assert sum(distribution.values()) == pytest.approx(1)
    assert len(distribution) == 9 and list(distribution.values()) == sorted(distribution.values(), reverse=True)

    def conditional(ids: list[int]) -> torch.Tensor:
        row = tiny.logits(family.target, ids)[-1]
        return row.masked_fill(row < row.topk(3).values[-1], -torch.inf).softmax(-1)

    for (a, b), probability in distribution.items():
        product = conditional(PROMPT)[a] * conditional([*PROMPT, a])[b]
        assert probability == pytest.approx(float(product), rel=1e-6)


def sample(drafter: str, count: int, spoil: bool = False) -> Counter:
    engine = Engine(tiny.family(), drafter, gamma=2, max_batch=64, max_len=16)
    if spoil:
        disguise(engine.drafters[drafter])
    params = [PARAMS.with_(seed=s) for s in range(count)]
    return Counter(tuple(r.output_ids[:2]) for r in engine.generate([PROMPT] * count, params))


@pytest.mark.parametrize("drafter, spoil, lossless",
                         [("none", False, True), ("near", False, True), ("near", True, False)])
def test_the_test_tells_a_biased_drafter_from_an_honest_one(drafter, spoil, lossless):
    distribution = joint_distribution(tiny.family(), PROMPT, PARAMS, 2)
    counts = sample(drafter, 1024, spoil)
    assert set(counts) <= set(distribution)
    result = distribution_test([counts[k] for k in distribution], list(distribution.values()))
    assert (result.p_value > 1e-3) == lossless
    assert (result.distance < 1.3 * result.noise) == lossless


def test_a_disguised_drafter_stays_honest_for_greedy_requests():
    engine = Engine(tiny.family(), "near", gamma=3, max_batch=1)
    disguise(engine.drafters["near"])
    request, = engine.generate([PROMPT], SamplingParams(max_new_tokens=20))
    tiny.assert_greedy(tiny.family().target, request)


def test_p_values_of_lossless_samples_are_uniform():
    distribution = np.array([0.4, 0.3, 0.15, 0.1, 0.04, 0.006, 0.004])       # the last three are put together
    rng = np.random.default_rng(0)
    results = [distribution_test(rng.multinomial(300, distribution), distribution, repeats=50) for _ in range(1000)]
    p = np.array([r.p_value for r in results])
    assert results[0].freedom == 4
    assert 0.03 < (p < 0.05).mean() < 0.08
    assert 0.44 < (p < 0.5).mean() < 0.56


def test_noise_is_what_95_in_100_lossless_samples_stay_below():
    distribution, rng = np.array([0.5, 0.3, 0.2]), np.random.default_rng(1)
    noise = distribution_test([500, 300, 200], distribution).noise
    distances = np.abs(rng.multinomial(1000, distribution, 4000) / 1000 - distribution).sum(1) / 2
    assert (distances <= noise).mean() == pytest.approx(0.95, abs=0.02)
    assert distribution_test([500, 300, 200], distribution).distance == pytest.approx(0)


def test_an_impossible_outcome_is_a_certain_breach():
    assert distribution_test([50, 49, 1], [0.5, 0.5, 0.0]).p_value == 0


@pytest.mark.parametrize("counts, distribution", [([1, 2], [1.0]), ([0, 0], [0.5, 0.5]), ([1, 2], [0.5, 0.6])])
def test_the_test_refuses_what_is_no_sample(counts, distribution):
    with pytest.raises(ValueError, match="distribution_test"):
        distribution_test(counts, distribution)


def test_everything_expected_rarely_leaves_no_freedom():
    assert distribution_test([1, 0, 1], [0.3, 0.3, 0.4]).p_value == 1
