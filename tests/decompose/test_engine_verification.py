"""The engine's text does not depend on how the target attends."""

from __future__ import annotations

import pytest
import tiny
from ragged_cases import COSTS

from spin_core.decompose import STRATEGIES
from spin_core.decompose.steps import NAMES as WAYS
from spin_core.engine import Engine
from spin_core.request import SamplingParams

PROMPTS = [[5, 6, 7], list(range(4, 30)), [9], [8, 9, 10, 11, 12, 13], [7] * 21]


@pytest.mark.parametrize("strategy", WAYS)
def test_greedy_text_is_the_model_s_own(strategy, monkeypatch):
    monkeypatch.setattr("spin_core.decompose.strategies.measured", lambda *_: COSTS)
    engine = Engine(tiny.family(), "near", 3, max_batch=4, prefill_chunk=20, verification=strategy)
    assert engine.target.attention.strategy == strategy
    for request in engine.generate(PROMPTS, SamplingParams(max_new_tokens=24)):
        assert request.error is None
        tiny.assert_greedy(tiny.family().target, request)


def test_sampled_text_is_the_same_under_all(monkeypatch):
    monkeypatch.setattr("spin_core.decompose.strategies.measured", lambda *_: COSTS)
    params = [SamplingParams(temperature=0.8, seed=i, max_new_tokens=16) for i in range(len(PROMPTS))]
    texts = {name: [r.output_ids for r in Engine(tiny.family(), "near", 3, max_batch=4, verification=name)
                    .generate(PROMPTS, params)] for name in STRATEGIES}
    assert all(text == texts["per-request"] for text in texts.values())


def test_an_unknown_strategy_is_refused_at_once():
    with pytest.raises(ValueError, match="unknown verification strategy 'paged'; known: auto, padded"):
        Engine(tiny.family(), "near", verification="paged")
