"""The distribution of the whole engine, end to end: enumerated with the unmodified model, against many seeds (rule 6).

Vocabularies are so small that the probability of every text of three tokens can be written down. The target's
distribution comes from the model library's own forward pass and its own logit warpers.
"""

from __future__ import annotations

import itertools
from collections import Counter
from functools import lru_cache

import numpy as np
import pytest
import tiny
import torch
from scipy.stats import chi2
from transformers import TemperatureLogitsWarper, TopPLogitsWarper

from spin_core.draft import ModelDrafter
from spin_core.engine import Engine
from spin_core.request import SamplingParams
from spin_core.select import make
from spin_core.select.spin import Spin

VOCAB, LENGTH, PROMPT = 6, 3, [4, 1, 2, 4, 1, 2, 4, 1]       # prompt lookup has something to propose from the start
PLAIN = SamplingParams(temperature=1.0, max_new_tokens=LENGTH)
FILTERED = SamplingParams(temperature=1.4, top_p=0.85, max_new_tokens=LENGTH)


@lru_cache
def family() -> tiny.TinyFamily:
    """Target and drafters of one layer, with distributions that differ: peaked, but no token impossible."""
    target, other = (tiny.llama(seed, layers=1, vocab=VOCAB, initializer_range=0.15) for seed in (0, 1))
    ids = torch.tensor([0, 1, 3, 4])
    drafters = [tiny.TinyDrafter("other", other), tiny.TinyDrafter("subset", tiny.subset(other, ids), ids),
                tiny.TinyDrafter("near", tiny.near(target, 0.4))]
    return tiny.TinyFamily(target, {d.name: d for d in drafters}, VOCAB, stop_ids=())


def distribution(params: SamplingParams) -> dict[tuple[int, ...], float]:
    """The probability of every text of LENGTH tokens."""
    texts = list(itertools.product(range(VOCAB), repeat=LENGTH))
    with torch.inference_mode():
        scores = family().target(input_ids=torch.tensor([[*PROMPT, *t] for t in texts]), use_cache=False).logits
    total = torch.ones(len(texts), dtype=torch.float64)
    for i in range(LENGTH):
        step = TemperatureLogitsWarper(params.temperature)(None, scores[:, len(PROMPT) + i - 1])
        if params.top_p < 1:
            step = TopPLogitsWarper(params.top_p)(None, step)
        total *= step.softmax(-1)[torch.arange(len(texts)), [t[i] for t in texts]]
    return dict(zip(texts, total.tolist()))


def texts(drafter: str, gamma: int, params: SamplingParams, count: int, engine: Engine | None = None) -> Counter:
    """What the engine emits for ``count`` seeds."""
    engine = engine or Engine(family(), drafter, gamma, max_batch=256, max_len=16)
    requests = engine.generate([PROMPT] * count, [params.with_(seed=s) for s in range(count)])
    accepted = engine.trace.metrics()["accepted"]
    assert gamma == 0 or 0.1 * count < accepted < 1.9 * count, "acceptance and rejection both take part"
    return Counter(tuple(r.output_ids) for r in requests)


def p_value(seen: Counter, expected: dict[tuple[int, ...], float]) -> float:
    """Chi-square; texts that are expected less than five times are one class."""
    count = seen.total()
    assert all(expected[text] > 0 for text in seen), "a text that has no probability was emitted"
    classes, rest = [], [0, 0.0]
    for text, probability in expected.items():
        if probability * count >= 5:
            classes.append((seen[text], probability * count))
        else:
            rest = [rest[0] + seen[text], rest[1] + probability * count]
    if rest[1] > 0:
        classes.append(tuple(rest))
    assert len(classes) > 20
    return float(chi2.sf(sum((s - e) ** 2 / e for s, e in classes), len(classes) - 1))


def test_the_enumeration_is_a_distribution_and_the_filter_filters():
    for params in (PLAIN, FILTERED):
        assert sum(distribution(params).values()) == pytest.approx(1)
    assert min(distribution(PLAIN).values()) > 0
    assert sum(p == 0 for p in distribution(FILTERED).values()) > 50


@pytest.mark.parametrize("drafter, gamma, params, count", [
    ("other", 2, PLAIN, 10_000), ("subset", 2, FILTERED, 10_000), ("ngram", 2, PLAIN, 5_000),
    ("near", 1, FILTERED, 5_000), ("none", 0, PLAIN, 5_000), ("sparse:near:3", 2, PLAIN, 4_000),
    ("sparse:target:4", 2, FILTERED, 4_000), ("vote:other,near,ngram", 2, PLAIN, 4_000)],
    ids=["another model", "subset vocabulary, top-p", "prompt lookup", "near model, top-p", "plain", "sparse cache",
         "self-speculation, top-p", "vote"])
def test_the_engines_texts_follow_the_targets_distribution(drafter, gamma, params, count):
    assert p_value(texts(drafter, gamma, params, count), distribution(params)) > 1e-3


def test_texts_follow_the_targets_distribution_under_spin_whoever_drafts(monkeypatch):
    arms = ["sparse:near:3", "sparse:target:4", "vote:other,near,ngram", "tree:other,near:2,1"]
    # left to itself it would soon draft no more: models so small are fastest alone, and nothing else may pay
    monkeypatch.setattr(Spin, "_may_pay", lambda self, views, rates, price: np.ones_like(rates, bool))
    exploring = make("spin", arms, gamma=2, explore=8, first=1, growth=1.0)
    engine = Engine(family(), selector=exploring, max_batch=256, max_len=16, pipeline="off")
    assert p_value(texts("spin", 2, PLAIN, 2_000, engine), distribution(PLAIN)) > 1e-3
    assert {e.drafter for e in engine.trace.events if e.kind == "step" and e.drafted} == {*arms}


class Liar(ModelDrafter):
    """Draws from one distribution and reports another: what rule 1 forbids."""

    def propose(self, requests, counts):
        draft = super().propose(requests, counts)
        if draft.probs is not None:
            draft.probs = draft.probs.sqrt()
            draft.probs /= draft.probs.sum(-1, keepdim=True)
        return draft


def test_a_drafter_that_lies_about_q_is_caught():
    """The test above has power: it sees this bias with less than half of the seeds."""
    engine = Engine(family(), "other", 2, max_batch=256, max_len=16)
    engine.drafters["other"] = Liar(family().drafters["other"], 256, 16, VOCAB)
    assert p_value(texts("other", 2, PLAIN, 4_000, engine), distribution(PLAIN)) < 1e-6
