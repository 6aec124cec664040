"""Drafting from the target's states: when it may begin."""

from __future__ import annotations

import pytest
import tiny
import torch

from spin_core.engine import Engine
from spin_core.request import SamplingParams
from spin_core.zoo.fed import LAST


@pytest.mark.parametrize("pipeline", ["off", "async", 2])
def test_several_states_are_fused(pipeline):
    """Three states of the target in place of the last alone."""
    served = tiny.fed_family((0, 1, LAST))
    engine = Engine(served, "fed", 3, max_batch=3, pipeline=pipeline)
    assert engine.target.states.shape[2] == 3 * 32
    requests = engine.generate([[5, 6, 7], [8], [9, 10, 11, 12]], SamplingParams(max_new_tokens=16, stop_ids=()))
    for request in requests:
        tiny.assert_greedy(served.target, request, stop_ids=())
    assert engine.trace.metrics()["drafted"] > 0 and not engine.retired


@pytest.mark.parametrize("layers", [(LAST,), (0, 1, LAST), (0, 1), (1, LAST, 0)])
def test_states_are_chosen_without_a_list(layers):
    """Torch makes a tensor of a list of hundreds of columns, and copies it to the device, at every draft."""
    engine = Engine(tiny.fed_family(layers), "fed", 3)
    columns = engine.get_drafter("fed").columns
    every = torch.arange(engine.target.states.shape[2])[columns].tolist()
    places = [0 if layer == LAST else 1 + engine.target.keep_layers.index(layer) for layer in layers]
    assert every == [32 * place + i for place in places for i in range(32)] and not isinstance(columns, list)


@pytest.mark.parametrize("mate", [[1, 2], [1, 2, 3], [1, 2, 3, 4, 5, 6, 7]])
def test_a_sampled_text_does_not_depend_on_how_the_prompt_was_chunked(mate):
    """Rule 12. A mate of 3 tokens leaves 5 of the 6 in the first step: then the last one is read alone."""
    served, prompt, drafted = tiny.fed_family(), [5, 6, 7, 8, 9, 10], 0
    for seed in range(3):
        params = SamplingParams(temperature=1.0, max_new_tokens=8, stop_ids=(), seed=seed)
        alone = Engine(served, "fed", 3, prefill_chunk=8)
        beside = Engine(served, "fed", 3, prefill_chunk=8)
        assert beside.generate([mate, prompt], params)[1].output_ids == alone.generate([prompt], params)[0].output_ids
        drafted += alone.trace.metrics()["drafted"]
    assert drafted, "it must draft, or nothing is shown"
