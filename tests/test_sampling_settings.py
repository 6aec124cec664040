"""What a model's own settings do to a text, samples of one prompt, seeds that are not given, and log-probabilities."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tiny
import torch
from tokenizers import AddedToken
from transformers import GenerationConfig

from spin_core.engine import Engine
from spin_core.logits import adjust_row
from spin_core.request import FinishReason, SamplingParams

PROMPTS = [[4, 9, 2, 4, 9, 11], [7], [5, 5, 5, 6, 5, 5], [1, 2, 3, 1, 2, 3, 1, 2]]
SETTINGS = {
    "repetition penalty": dict(repetition_penalty=1.7),
    "a penalty below 1": dict(repetition_penalty=0.6),
    "no repeated pairs": dict(no_repeat_ngram_size=2),
    "no repeated tokens": dict(no_repeat_ngram_size=1, max_new_tokens=12),
    "suppressed tokens": dict(suppress_tokens=[4, 9, 11, 30, 999]),
    "all": dict(repetition_penalty=1.3, no_repeat_ngram_size=3, suppress_tokens=[2, 3, 17]),
}
MODES = [("near", {}), ("ngram", {}), ("tree:near,ngram:2,2,1", {}), ("same", dict(pipeline=2)),
         ("near", dict(pipeline="async")), (None, dict(pipeline="auto")), ("none", {})]


def generated(model, prompt: list[int], **settings) -> list[int]:
    """What transformers' own ``generate`` writes, greedily."""
    settings = {"max_new_tokens": 24} | settings
    config = GenerationConfig(do_sample=False, pad_token_id=0, **settings)
    out = model.generate(torch.tensor([prompt]), generation_config=config, attention_mask=torch.ones(1, len(prompt)))
    return out[0, len(prompt):].tolist()


@pytest.mark.parametrize("drafter, options", MODES, ids=str)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_greedy_text_is_generates_under_the_same_settings(name, drafter, options):
    family, settings = tiny.family(), SETTINGS[name]
    expected = [generated(family.target, prompt, **settings) for prompt in PROMPTS]
    with Engine(family, drafter, **options) as engine:
        params = SamplingParams(**{"max_new_tokens": 24} | settings, stop_ids=())
        assert [r.output_ids for r in engine.generate(PROMPTS, params)] == expected
        plain = SamplingParams(max_new_tokens=24, stop_ids=())
        mixed = engine.generate(PROMPTS, [params, plain, params, plain])        # in one batch with plain ones
        assert [mixed[0].output_ids, mixed[2].output_ids] == [expected[0], expected[2]]
        assert mixed[1].output_ids == generated(family.target, PROMPTS[1])


def test_drafts_are_accepted_under_settings():
    with Engine(tiny.family(), "same", 4) as engine:
        engine.generate(PROMPTS, SamplingParams(max_new_tokens=24, stop_ids=(), repetition_penalty=1.05))
        assert engine.trace.metrics()["accepted"] > 10


@pytest.mark.parametrize("drafter", ["same", "tree:near:2,2"])
def test_sampled_tokens_follow_the_adjusted_distribution(drafter):
    """The first two tokens of many samples, against exact probabilities."""
    family, count = tiny.family(), 3000
    prompt, settings = [4, 9, 2], dict(repetition_penalty=2.0, no_repeat_ngram_size=1)
    params = SamplingParams(temperature=1.0, top_k=3, max_new_tokens=2, stop_ids=(), n=count, seed=0, **settings)
    with Engine(family, drafter, 2, max_batch=64) as engine:
        pairs = [tuple(r.output_ids) for r in engine.generate([prompt], params)]

    def p(ids: list[int]) -> torch.Tensor:
        row = tiny.logits(family.target, ids)[-1].clone()
        adjust_row(row, ids, params)
        return row.masked_fill(row < row.topk(3).values[-1], -torch.inf).softmax(-1)

    first = p(prompt)
    for a in first.nonzero().flatten().tolist():
        second = p([*prompt, a])
        assert not second[[*prompt, a]].any()
        for b in second.nonzero().flatten().tolist():
            expected = float(first[a] * second[b])
            sigma = (expected * (1 - expected) / count) ** .5
            assert abs(pairs.count((a, b)) / count - expected) < 4.5 * sigma + 1e-3
    assert {a for a, _ in pairs} <= set(first.nonzero().flatten().tolist())


def family_with(**settings) -> tiny.TinyFamily:
    """The tiny family whose target's generation config says more."""
    family = tiny.TinyFamily(tiny.llama(), {})
    family.target.generation_config = GenerationConfig(**settings)
    return family


def test_settings_are_the_models_own_where_none_are_given():
    settings = dict(repetition_penalty=1.7, no_repeat_ngram_size=3, suppress_tokens=[4])
    family = family_with(**settings)
    with Engine(family, "ngram") as engine:
        def outputs(**given) -> list[list[int]]:
            params = SamplingParams(max_new_tokens=24, stop_ids=(), **given)
            return [r.output_ids for r in engine.generate(PROMPTS, params)]

        assert outputs() == [generated(family.target, prompt, **settings) for prompt in PROMPTS]
        off = dict(repetition_penalty=1.0, no_repeat_ngram_size=0, suppress_tokens=())
        neutral = dict(repetition_penalty=1.0, no_repeat_ngram_size=0, suppress_tokens=None)
        assert outputs(**off) == [generated(tiny.llama(), prompt, **neutral) for prompt in PROMPTS]


@pytest.mark.parametrize("settings", [dict(min_length=5), dict(bad_words_ids=[[3]]), dict(forced_eos_token_id=3),
                                      dict(begin_suppress_tokens=[4]), dict(num_beams=4), dict(guidance_scale=1.5)],
                         ids=str)
def test_settings_that_are_not_applied_are_refused_by_name(settings):
    family = family_with(**settings)
    with pytest.raises(ValueError, match=f"generation_config sets {next(iter(settings))}="):
        Engine(family, "ngram")
    setattr(family.target.generation_config, next(iter(settings)), None)
    Engine(family, "ngram").close()


@pytest.mark.parametrize("wrong", [dict(repetition_penalty=0), dict(repetition_penalty=float("nan")),
                                   dict(repetition_penalty="1"), dict(no_repeat_ngram_size=-1),
                                   dict(no_repeat_ngram_size=1.5), dict(suppress_tokens=[-1]), dict(suppress_tokens=3),
                                   dict(n=0), dict(n=None), dict(n=1.5), dict(seed=-1)], ids=str)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SamplingParams(**wrong)


# ---- seeds and samples

def test_requests_without_a_seed_get_seeds_of_their_own():
    params = SamplingParams(temperature=1.0, max_new_tokens=12, stop_ids=())
    texts = []
    for _ in range(2):
        with Engine(tiny.family(), "near") as engine:
            texts.append([tuple(r.output_ids) for r in engine.generate([PROMPTS[0]] * 6, params)])
    assert texts[0] == texts[1] and len(set(texts[0])) == 6
    with Engine(tiny.family(), "near") as engine:
        same = engine.generate([PROMPTS[0]] * 6, params.with_(seed=0))
    assert {tuple(r.output_ids) for r in same} == {texts[0][0]}


@pytest.mark.parametrize("seed", [None, 7])
def test_n_samples_of_a_prompt_stand_side_by_side(seed):
    params = SamplingParams(temperature=1.0, max_new_tokens=12, stop_ids=(), n=3, seed=seed)
    with Engine(tiny.family(), "near") as engine:
        requests = engine.generate(PROMPTS[:2], [params, params.with_(n=2)])
        assert [r.prompt_ids for r in requests] == [PROMPTS[0]] * 3 + [PROMPTS[1]] * 2
        assert len({tuple(r.output_ids) for r in requests[:3]}) == 3
        if seed is not None:
            again = engine.generate(PROMPTS[:1], params)
            assert [r.output_ids for r in again] == [r.output_ids for r in requests[:3]]
            alone = engine.submit(PROMPTS[0], params.with_(n=1))
            while not alone.finished:
                engine.step()
            assert alone.output_ids == requests[0].output_ids
        with pytest.raises(ValueError, match="one request is one sample"):
            engine.submit(PROMPTS[0], params)


# ---- log-probabilities

@pytest.mark.parametrize("drafter, options", MODES, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_logprobs_are_the_targets_own(drafter, options, temperature):
    family = tiny.family()
    params = SamplingParams(temperature=temperature, top_k=9, max_new_tokens=10, seed=1, repetition_penalty=1.2,
                            logprobs=True)
    with Engine(family, drafter, **options) as engine:
        requests = engine.generate(PROMPTS, [params] * 3 + [params.with_(logprobs=False)])
    for request in requests[:3]:
        rows = tiny.logits(family.target, request.ids)[len(request.prompt_ids) - 1:-1].log_softmax(-1)
        expected = rows.gather(1, torch.tensor(request.output_ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(request.logprobs, dtype=rows.dtype), expected, rtol=0, atol=1e-9)
    assert requests[3].logprobs == []


# ---- stop strings that are special tokens

class SpecialFamily(tiny.TinyFamily):
    """Id 5 is a special token, "<end>", that no decoded text shows."""

    tokenizer = SimpleNamespace(added_tokens_decoder={5: AddedToken("<end>", special=True), 6: AddedToken("plain")})

    def decode(self, ids: list[int]) -> str:
        return super().decode([i for i in ids if i != 5])


def test_a_stop_string_that_is_a_special_token_ends_the_text():
    family = SpecialFamily(tiny.family().target, {})
    with Engine(family, "ngram") as engine:
        free = engine.generate(PROMPTS, SamplingParams(temperature=2.0, max_new_tokens=60, stop_ids=(), seed=3))
        ended = [r for r in free if 5 in r.output_ids]
        assert ended
        for request in ended:
            params = SamplingParams(temperature=2.0, max_new_tokens=60, stop_ids=(), seed=3, stop=("<end>",))
            stopped, = engine.generate([request.prompt_ids], params)
            output = request.output_ids[:request.output_ids.index(5) + 1]
            assert stopped.output_ids == output and stopped.finish_reason is FinishReason.STOP
            assert stopped.text == family.decode(output)
        refused, = engine.generate(PROMPTS[:1], SamplingParams(stop=("a<end>",)))
        assert refused.finish_reason is FinishReason.ERROR and "holds the special token '<end>'" in refused.error
