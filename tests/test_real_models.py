"""The embedded family end to end: greedy texts against the library's own, and the distribution against chi-square."""

import numpy as np
import pytest
import torch
from scipy import stats

from spin_core.lab.bench import equality
from spin_core.draft import ModelDrafter
from spin_core.engine import Engine
from spin_core.request import SamplingParams
from spin_core.workloads import load_workload

pytestmark = pytest.mark.models


def short_prompts(family, count: int) -> list[list[int]]:
    """The shortest prompts of a small workload: a pass costs by the token."""
    return sorted((family.encode(p.messages) for p in load_workload("mix", "test", limit=24)), key=len)[:count]


def test_greedy_text_equals_generate_up_to_near_ties(smollm2):
    prompts = [smollm2.encode(p.messages) for p in load_workload("mix", "test", limit=10)]
    engine = Engine(smollm2, max_batch=10)
    rows = equality.compare(engine, prompts, max_new_tokens=24)
    assert all(row["logit_gap"] < equality.NEAR_TIE for row in rows), rows
    assert len(rows) <= 1, rows
    # the comparison means something. How much SPIN drafts depends on the machine's clock, so only that it does
    assert engine.trace.metrics()["drafted"] > 0


def test_every_drafter_of_the_pool_is_lossless(smollm2):
    prompts = short_prompts(smollm2, 4)
    params = SamplingParams(max_new_tokens=12)
    plain = [r.output_ids for r in Engine(smollm2, "none", max_batch=4).generate(prompts, params)]
    for name in [*smollm2.drafters, "ngram", f"ngram+{next(iter(smollm2.drafters))}"]:
        engine = Engine(smollm2, name, gamma=4, max_batch=4)
        texts = [r.output_ids for r in engine.generate(prompts, params)]
        assert engine.trace.metrics()["accepted"] > 0, name
        other = [prompt for prompt, text, wanted in zip(prompts, texts, plain) if text != wanted]
        rows = equality.compare(engine, other, max_new_tokens=12)       # a tie, or a mistake?
        assert all(row["logit_gap"] < equality.NEAR_TIE for row in rows), (name, rows)


def test_the_comparison_sees_a_wrong_token(smollm2):
    engine = Engine(smollm2, "none")
    generate = engine.generate

    def one_token_off(prompts, params):
        requests = generate(prompts, params)
        requests[0].output_ids[3] = (requests[0].output_ids[3] + 1) % smollm2.vocab_size
        return requests

    engine.generate = one_token_off
    rows = equality.compare(engine, [smollm2.encode("Name three rivers in Europe.")], max_new_tokens=8)
    assert [row["token"] for row in rows] == [3] and rows[0]["logit_gap"] > equality.NEAR_TIE


PROMPT = "The sea is"
PARAMS = SamplingParams(temperature=1.0, top_k=20, stop_ids=())
SEEDS = 1000
DRAFTER = "pruned-2L-8k"        # drafts from the first token on, which a drafter fed with states does not


def first_tokens(family, count: int, tokens: int = 2) -> np.ndarray:
    """The first tokens behind PROMPT for many seeds, ``[count, tokens]``; all were drafted."""
    engine = Engine(family, DRAFTER, gamma=2, max_batch=100, max_len=16)
    prompt = family.tokenizer.encode(PROMPT)
    params = PARAMS.with_(max_new_tokens=tokens + 1)        # the last token of a text is never drafted
    requests = engine.generate([prompt] * count, [params.with_(seed=s) for s in range(count)])
    assert not engine.retired and engine.trace.metrics()["accepted"] > count // 10
    return np.array([r.output_ids[:tokens] for r in requests])


def exact_law(family, ids: list[int]) -> np.ndarray:
    """The target's next-token distribution behind ``ids`` by the library's own forward pass, float64."""
    with torch.inference_mode():
        logits = family.target(input_ids=torch.tensor([ids])).logits[0, -1].double()
    kept, index = logits.topk(PARAMS.top_k)
    distribution = torch.zeros_like(logits)
    distribution[index] = kept.softmax(-1)
    return distribution.numpy()


def chi_square(tokens: np.ndarray, distribution: np.ndarray) -> float:
    """p-value of ``tokens`` under ``distribution``; tokens expected fewer than five times are counted as one."""
    counts, expected = np.bincount(tokens, minlength=len(distribution)), distribution * len(tokens)
    assert counts[distribution == 0].sum() == 0
    big = expected >= 5
    observed = np.append(counts[big], counts[~big].sum())
    expected = np.append(expected[big], expected[~big].sum())
    return stats.chisquare(observed[expected > 0], expected[expected > 0]).pvalue


def test_the_distribution_of_two_drafted_tokens(smollm2):
    tokens = first_tokens(smollm2, SEEDS)
    prompt = smollm2.tokenizer.encode(PROMPT)
    assert chi_square(tokens[:, 0], exact_law(smollm2, prompt)) > 1e-4
    most = np.bincount(tokens[:, 0]).argmax()
    second = tokens[tokens[:, 0] == most, 1]
    assert len(second) > 100
    assert chi_square(second, exact_law(smollm2, [*prompt, int(most)])) > 1e-4


def test_the_chi_square_catches_a_wrong_q(smollm2, monkeypatch):
    """The same test must fail when the drafter hands the verifier another distribution than it drew from."""
    propose = ModelDrafter.propose

    def understated(self, requests, counts):
        draft = propose(self, requests, counts)
        if draft.probs is not None:
            # a distribution, and not the one drawn from
            draft.probs = draft.probs / 4 + 0.75 / draft.probs.shape[-1]
        return draft

    monkeypatch.setattr(ModelDrafter, "propose", understated)
    tokens = first_tokens(smollm2, SEEDS, 1)
    assert chi_square(tokens[:, 0], exact_law(smollm2, smollm2.tokenizer.encode(PROMPT))) < 1e-9
