"""The fast drafters against drafting in its textbook form."""

from __future__ import annotations

import tiny
import torch
from hypothesis import given, settings, strategies as st

from spin_core.draft import ModelDrafter, NgramDrafter, reference
from spin_core.request import Request, SamplingParams

tokens = st.integers(0, tiny.VOCAB - 1)
params = st.builds(SamplingParams, temperature=st.sampled_from([0.0, 0.7, 1.3]), top_k=st.sampled_from([0, 5]),
                   top_p=st.sampled_from([1.0, 0.8]), seed=st.integers(0, 99))


@settings(max_examples=30, deadline=None)
@given(batch=st.lists(st.tuples(st.lists(tokens, min_size=1, max_size=12), params, st.integers(0, 4)), min_size=1,
                      max_size=4), again=st.booleans())
def test_a_ragged_batch_over_a_cache_drafts_as_the_textbook_does(batch, again):
    source = tiny.family().drafters["near"]
    drafter = ModelDrafter(source, len(batch), tiny.MAX_CONTEXT, tiny.VOCAB)
    requests = [Request(ids, own, slot=slot) for slot, (ids, own, _) in enumerate(batch)]
    counts = [gamma for _, _, gamma in batch]
    for _ in range(1 + again):              # the second time everything is in the cache
        draft = drafter.propose(requests, counts)
    drafted = [part.tolist() for part in draft.tokens.split(draft.counts.tolist())]
    rows = draft.prob_row.split(draft.counts.tolist())
    for (ids, own, gamma), ours, row in zip(batch, drafted, rows):
        expected, q = reference.draft(source.model, ids, gamma, own)
        assert ours == expected
        if own.greedy:
            assert (row == -1).all()
        elif gamma:
            assert torch.allclose(draft.probs[row], q, rtol=0, atol=1e-12)


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 3), min_size=1, max_size=24), prompt=st.integers(1, 24), gamma=st.integers(0, 6),
       sizes=st.sampled_from([(3, 2), (4, 3), (2, 1)]))
def test_the_indexed_lookup_finds_what_a_search_finds(ids, prompt, gamma, sizes):
    drafter = NgramDrafter(*sizes)
    request = Request(ids[:prompt], SamplingParams(), output_ids=ids[prompt:], slot=0)
    assert drafter.propose([request], [gamma]).tokens.tolist() == reference.prompt_lookup(ids, gamma, *sizes)
