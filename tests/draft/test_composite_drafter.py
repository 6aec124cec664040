"""Lookup where it finds something, a model elsewhere: whose tokens, under which distribution, and what it costs to
take over."""

from __future__ import annotations

import pytest
import test_engine_distribution as distribution
import tiny
import torch
from hypothesis import given, settings, strategies as st

from spin_core.draft import CompositeDrafter, ModelDrafter, NgramDrafter
from spin_core.engine import Engine
from spin_core.request import Request, SamplingParams

SLOTS = 4
tokens = st.integers(0, 9)          # so few that texts repeat themselves
params = st.builds(SamplingParams, temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 99))


def model(name: str = "subset") -> ModelDrafter:
    return ModelDrafter(tiny.family().drafters[name], SLOTS, tiny.MAX_CONTEXT, tiny.VOCAB)


@settings(max_examples=40, deadline=None)
@given(batch=st.lists(st.tuples(st.lists(tokens, min_size=1, max_size=14), params, st.integers(0, 4)), min_size=1,
                      max_size=SLOTS))
def test_each_request_has_the_lookups_draft_or_else_the_models_with_its_distribution(batch):
    requests = [Request(ids, p, slot=i) for i, (ids, p, _) in enumerate(batch)]
    counts = [count for _, _, count in batch]
    draft = CompositeDrafter(NgramDrafter(4, 3), model()).propose(requests, counts)
    assert draft.tokens.shape == draft.prob_row.shape and draft.cu[-1] == len(draft.tokens)
    for b, (request, count) in enumerate(zip(requests, counts)):
        rows = slice(int(draft.cu[b]), int(draft.cu[b + 1]))
        found = NgramDrafter(4, 3).propose([request], [count])
        if found.tokens.numel():                        # one-hot
            assert torch.equal(draft.tokens[rows], found.tokens) and (draft.prob_row[rows] == -1).all()
            continue
        alone = model().propose([request], [count])
        assert torch.equal(draft.tokens[rows], alone.tokens)
        for ours, theirs in zip(draft.prob_row[rows].tolist(), alone.prob_row.tolist()):
            assert (ours < 0) == (theirs < 0) == request.params.greedy
            if theirs >= 0:
                torch.testing.assert_close(draft.probs[ours], alone.probs[theirs], rtol=0, atol=1e-12)
                assert torch.equal(draft.ids, alone.ids)


def test_its_texts_follow_the_targets_distribution():
    assert distribution.p_value(distribution.texts("ngram+subset", 2, distribution.PLAIN, 6000),
                                distribution.distribution(distribution.PLAIN)) > 1e-3


@pytest.mark.parametrize("name", ["ngram+near", "ngram+subset", "ngram+short", "ngram+ngram+near"])
def test_greedy_text_is_that_of_plain_decoding(name):
    engine = Engine(tiny.family(), name, 4, max_batch=3)
    requests = engine.generate([[i, 4, i, 5] * (i % 5 + 1) for i in range(9)], SamplingParams(max_new_tokens=30))
    for request in requests:
        tiny.assert_greedy(engine.family.target, request)
    assert engine.trace.metrics()["accepted"] > 20
    tiny.assert_sound(engine, requests)


def test_the_model_reads_what_lookup_drafted_in_one_pass(monkeypatch):
    """While lookup serves a request the model falls behind; catching up reads all that, and tells both's hits."""
    composite, text = CompositeDrafter(NgramDrafter(4, 3), model("same")), [5, 6, 7, 8, 5, 6, 7, 8]
    request = Request(text, SamplingParams(), slot=0)
    composite.propose([request], [2])
    assert composite.fallback.runner.cache.lengths[0] == 0 and composite.missing(request) == len(text) - 1
    target = tiny.family().target
    for _ in range(6):
        request.output_ids.append(int(tiny.logits(target, request.ids)[-1].argmax()))
    passes = []
    forward = composite.fallback.runner.forward
    monkeypatch.setattr(composite.fallback.runner, "forward", lambda slots, counts, *rest, **more: passes.append(counts)
                        or forward(slots, counts, *rest, **more))
    read, = composite.catch_up([request])
    assert passes == [[len(text) + 5]] and read.tokens == len(text) + 5 and composite.missing(request) == 0
    # the model is the target, so it is always right; lookup, where it finds something, only if the text repeats
    assert read.first == len(text) and len(read.hits) == 6 and None not in read.hits
    lookup = NgramDrafter(4, 3)
    grows = Request(text, SamplingParams(), slot=0)
    for token, hit in zip(request.output_ids, read.hits):
        said = lookup.propose([grows], [1]).tokens.tolist()
        assert hit == (said == [token] if said else True)
        grows.output_ids.append(token)
    composite.rollback(0, 0)
    assert not any(composite.fallback.runner.cache.lengths) and not composite.lookup.index
