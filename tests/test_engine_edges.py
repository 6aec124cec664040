"""Extreme parameters and unexpected faults: a request with one ends alone, and nothing is miscounted."""

from __future__ import annotations

import pytest
import tiny
import torch

from spin_core.engine import Engine
from spin_core.request import FinishReason, SamplingParams
from spin_core.sampling import SamplingBatch

PROMPTS = [[1, 2, 5], [7, 8, 9]]
PIPELINES = ["off", 2, "async"]


def params(**more) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": 12, "stop_ids": (), **more})


@pytest.mark.parametrize("wrong", [{"temperature": 10 ** 400}, {"top_k": 2 ** 63}, {"top_k": -1}])
def test_numbers_that_no_tensor_can_hold_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SamplingParams(**wrong)


@pytest.mark.parametrize("wrong", [{"bf16": "False"}, {"bf16": 1}, {"selector": 3}, {"selector": ""}, {"arms": "near"},
                                   {"stage_timeout": "x"}, {"stage_timeout": float("nan")}])
def test_an_engine_names_the_argument_that_is_wrong(wrong):
    with pytest.raises(ValueError, match=f"Engine: {next(iter(wrong))}"):
        Engine(tiny.family(), **wrong)


def test_any_temperature_survives_single_precision():
    batch = SamplingBatch.from_params([SamplingParams(temperature=t) for t in (0.0, 5e-324, 1e-46, 0.7, 1e39, 1e308)])
    assert batch.greedy.tolist() == [True, *[False] * 5]
    single = batch.temperature.float()
    assert single.isfinite().all() and (single[1:] > 0).all() and batch.temperature[3] == 0.7


class Masked(torch.nn.Module):
    """A head that never says token 7."""

    def __init__(self, head: torch.nn.Module) -> None:
        super().__init__()
        self.head, self.weight = head, head.weight

    def forward(self, x):
        return self.head(x).index_fill(-1, torch.tensor([7]), -torch.inf)


@pytest.mark.parametrize("temperature", [1e-46, 1e39, 1e300])
@pytest.mark.parametrize("gamma", [1, 4])
def test_an_extreme_temperature_harms_no_request(temperature, gamma):
    target = tiny.llama(dtype=torch.float32)
    drafter = tiny.near(target)
    target.lm_head, drafter.lm_head = Masked(target.lm_head), Masked(drafter.lm_head)
    engine = Engine(tiny.TinyFamily(target, {"masked": tiny.TinyDrafter("masked", drafter)}), "masked", gamma)
    own = [params(), params(temperature=temperature)]
    assert [r.finish_reason for r in engine.generate(PROMPTS, own)] == [FinishReason.LENGTH] * 2
    assert not engine.retired


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_text_that_cannot_be_decoded_ends_one_request(pipeline, monkeypatch):
    family = tiny.family()
    plain = Engine(family, "none").generate([*PROMPTS, [3, 4, 5]], params())
    bad = next(t for t in plain[1].output_ids if all(t not in r.output_ids for r in (plain[0], plain[2])))
    decode = family.decode

    def fails(ids):
        if bad in ids:
            raise UnicodeError("no such letter")
        return decode(ids)

    monkeypatch.setattr(family, "decode", fails)
    engine = Engine(family, "near", pipeline=pipeline)
    for stop in ((), ("there is no such text",)):
        first, second, third = engine.generate([*PROMPTS, [3, 4, 5]], params(stop=stop))
        assert [first.output_ids, third.output_ids] == [plain[0].output_ids, plain[2].output_ids]
        assert second.finish_reason is FinishReason.ERROR and "no such letter" in second.error
        assert len(second.output_ids) <= 12 and second.output_ids == plain[1].output_ids[:len(second.output_ids)]
    assert sorted(engine.free_slots) == list(range(engine.max_batch))


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_stop_in_mid_draft_is_no_rejection(pipeline):
    """The target drafts for itself: whatever ends a text, nothing is ever rejected."""
    family = tiny.family()
    text = Engine(family, "none").generate(PROMPTS[:1], params())[0].output_ids
    engine = Engine(family, "same", 8, pipeline=pipeline)
    request, = engine.generate(PROMPTS[:1], params(stop_ids=(text[5],)))
    assert request.output_ids == text[:text.index(text[5]) + 1]
    assert engine.trace.metrics()["acceptance_rate"] == 1


@pytest.mark.parametrize("selector", ["minions", "spin-full"])
def test_a_selector_does_not_take_a_stop_for_a_failure(selector):
    family = tiny.family()
    text = Engine(family, "none").generate(PROMPTS[:1], params())[0].output_ids
    engine = Engine(family, selector=selector, arms=["same"], pipeline="off", max_batch=1)
    engine.generate(PROMPTS[:1] * 8, params(stop_ids=(text[5],)))
    assert engine.selection.selector.survival.failed.sum() == 0 < engine.selection.selector.survival.tested.sum()


@pytest.mark.parametrize("gamma", [50, 2 ** 64])
def test_steps_ahead_draft_no_more_than_can_be_used(gamma):
    family = tiny.family()
    engine = Engine(family, "near", gamma, verification="per-request", pipeline="async")
    requests = engine.generate(PROMPTS, params())
    plain = Engine(family, "none").generate(PROMPTS, params())
    assert [r.output_ids for r in requests] == [r.output_ids for r in plain]
    assert 4 < max(len(e.drafted) for e in engine.trace.events if e.kind == "step") <= 11


@pytest.mark.parametrize("drafter", [5, ["near"], b"near"])
def test_a_drafter_that_is_no_name(drafter):
    with pytest.raises(ValueError, match="asked for by its name"):
        Engine(tiny.family(), "none").submit([1, 2], drafter=drafter)


@pytest.mark.parametrize("prompt", [b"\x01\x02", {1: 2, 3: 4}, {1, 2}])
def test_what_can_be_counted_out_is_not_yet_a_prompt(prompt):
    request = Engine(tiny.family(), "none").submit(prompt)
    assert request.finish_reason is FinishReason.ERROR and type(prompt).__name__ in request.error


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_an_unknown_grouping_is_refused_by_every_pipeline(pipeline):
    with pytest.raises(ValueError, match="unknown grouping policy 'nonsense'"):
        Engine(tiny.family(), "near", pipeline=pipeline, grouping="nonsense")
