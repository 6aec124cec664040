"""Drafting with a model: what is proposed, the distribution it is said to come from, and what the cache holds."""

from __future__ import annotations

import pytest
import tiny
import torch
from hypothesis import given, settings, strategies as st

from spin_core.draft import Draft, ModelDrafter, build
from spin_core.engine import Engine
from spin_core.request import Request, SamplingParams
from spin_core.runtime.linear import can_pack, can_round
from spin_core.sampling import SamplingBatch, probabilities

SLOTS = 4
tokens = st.integers(0, tiny.VOCAB - 1)


def drafter(name: str = "near", slots: int = SLOTS) -> ModelDrafter:
    return ModelDrafter(tiny.family().drafters[name], slots, tiny.MAX_CONTEXT, tiny.VOCAB)


def request(ids: list[int], slot: int = 0, **params) -> Request:
    return Request(list(ids), SamplingParams(**params), slot=slot)


def split(draft: Draft) -> list[list[int]]:
    return [part.tolist() for part in draft.tokens.split(draft.counts.tolist())]


def greedy(name: str, ids: list[int], count: int) -> list[int]:
    """Plain greedy decoding by the drafter's model, in target ids."""
    source = tiny.family().drafters[name]
    for _ in range(count):
        column = int(tiny.logits(source.model, ids)[-1].argmax())
        ids = [*ids, column if source.ids is None else int(source.ids[column])]
    return ids[len(ids) - count:]


@pytest.mark.parametrize("name", ["near", "subset", "ngram", "tree:near,ngram:2,1", "sparse:near:8", "none"])
def test_a_step_may_ask_any_drafter_to_begin(name):
    """What would raise there is suppressed, and would go unnoticed."""
    with Engine(tiny.family(), name, 2) as engine:
        engine.get_drafter(name).begin([request([1, 2])], [2])


@settings(max_examples=30, deadline=None)
@given(prompts=st.lists(st.lists(tokens, min_size=1, max_size=12), min_size=1, max_size=SLOTS), data=st.data(),
       name=st.sampled_from(["near", "subset"]))
def test_greedy_requests_get_the_drafters_own_greedy_text(prompts, data, name):
    counts = [data.draw(st.integers(0, 4)) for _ in prompts]
    slots = data.draw(st.permutations(range(SLOTS)))
    draft = drafter(name).propose([request(p, s) for p, s in zip(prompts, slots)], counts)
    assert split(draft) == [greedy(name, p, c) for p, c in zip(prompts, counts)]
    assert draft.probs is None and (draft.prob_row == -1).all()      # rule 2


@settings(max_examples=30, deadline=None)
@given(prompts=st.lists(st.lists(tokens, min_size=1, max_size=12), min_size=1, max_size=SLOTS), data=st.data(),
       name=st.sampled_from(["near", "subset"]))
def test_q_is_the_distribution_of_the_drafters_model_under_the_requests_own_parameters(prompts, data, name):
    """Rule 1, with greedy and sampling requests in one batch."""
    source = tiny.family().drafters[name]
    params = [SamplingParams(temperature=data.draw(st.sampled_from([0.0, 0.5, 1.3])), seed=i,
                             top_k=data.draw(st.sampled_from([0, 3])), top_p=data.draw(st.sampled_from([1.0, 0.7])))
              for i in range(len(prompts))]
    counts = [data.draw(st.integers(0, 3)) for _ in prompts]
    requests = [Request(p, s, slot=i) for i, (p, s) in enumerate(zip(prompts, params))]
    draft = drafter(name).propose(requests, counts)
    assert draft.counts.tolist() == counts
    assert not sum(counts) or (draft.ids is None) == (source.ids is None)
    for b, (prompt, drafted) in enumerate(zip(prompts, split(draft))):
        rows = draft.prob_row[draft.cu[b]:draft.cu[b + 1]].tolist()
        assert all((row == -1) == params[b].greedy for row in rows)
        for i, row in enumerate(rows):
            if row >= 0:
                behind = tiny.logits(source.model, prompt + drafted[:i])[-1:]
                q = probabilities(behind, SamplingBatch.from_params([params[b]]))[0]
                assert torch.allclose(draft.probs[row], q, rtol=0, atol=1e-12)
                column = drafted[i] if source.ids is None else source.ids.tolist().index(drafted[i])
                assert q[column] > 0


def test_sampled_drafts_follow_q():
    """The empirical distribution of the first two drafted tokens over many seeds, against q."""
    n = 4000
    batch = [request([4, 9, 2], seed, temperature=1.0, seed=seed) for seed in range(n)]
    pairs = split(drafter("subset", n).propose(batch, [2] * n))
    ids = tiny.family().drafters["subset"].ids
    source = tiny.family().drafters["subset"].model
    first = tiny.logits(source, [4, 9, 2])[-1].softmax(-1)
    distribution = torch.stack([first[c] * tiny.logits(source, [4, 9, 2, int(i)])[-1].softmax(-1)
                                for c, i in enumerate(ids)])
    counts = torch.zeros_like(distribution)
    for a, b in pairs:
        counts[torch.searchsorted(ids, a), torch.searchsorted(ids, b)] += 1
    for axis in (0, 1):     # each marginal: 27 columns, of which those with an expectation under 5 are pooled
        expected, seen = distribution.sum(axis) * n, counts.sum(axis)
        rare = expected < 5
        expected = torch.cat([expected[~rare], expected[rare].sum(0, keepdim=True)]).clamp(min=1e-9)
        seen = torch.cat([seen[~rare], seen[rare].sum(0, keepdim=True)])
        statistic, degrees = float(((seen - expected) ** 2 / expected).sum()), len(expected) - 1
        assert statistic < degrees + 4 * (2 * degrees) ** 0.5


def test_drafts_depend_on_seed_and_position_not_on_the_batch():
    alone = [drafter().propose([request([5, 6, i], temperature=1.0, seed=i)], [3]).tokens.tolist() for i in range(4)]
    together = drafter().propose([request([5, 6, i], 3 - i, temperature=1.0, seed=i) for i in range(4)], [3] * 4)
    assert split(together) == alone and len(set(map(tuple, alone))) == 4


def test_a_position_drafted_again_gets_fresh_noise():
    """Else the token that was just rejected would be drafted once more."""
    again = 0
    for seed in range(40):
        ours, ids = drafter(), [5, 6, 7]
        first = ours.propose([request(ids, temperature=5.0, seed=seed)], [3]).tokens.tolist()
        ours.rollback(0, len(ids))
        committed = [*ids, first[0]]        # the first was accepted: the second stands at the same position again
        ours.rollback(0, len(committed))
        again += ours.propose([request(committed, temperature=5.0, seed=seed)], [2]).tokens.tolist()[0] == first[1]
    assert again < 10


@pytest.mark.parametrize("accepted", range(4))
def test_rollback_leaves_exactly_what_is_committed(accepted):
    """Rule 10. Of 3 drafted tokens it has read 2; after full acceptance its own last one is still to be fed."""
    ours, ids = drafter(), [1, 2, 3, 4, 5]
    drafted = ours.propose([request(ids)], [3]).tokens.tolist()
    assert ours.runner.cache.lengths[0] == 5 + 2
    ours.rollback(0, 5 + accepted)
    assert ours.runner.cache.lengths[0] == 5 + min(accepted, 2)
    target_says = 17
    ids = ids + drafted[:accepted] + [target_says]
    assert ours.propose([request(ids)], [3]).tokens.tolist() == greedy("near", ids, 3)


def test_a_request_taken_over_in_mid_text_is_read_in_one_pass(monkeypatch):
    ours, ids = drafter(), [9, 8, 7, 6, 5, 4, 3, 2, 1]
    passes = []
    forward = ours.runner.forward
    monkeypatch.setattr(ours.runner, "forward", lambda slots, counts, *rest: passes.append(counts)
                        or forward(slots, counts, *rest))
    ours.propose([request(ids[:4])], [1])
    ours.rollback(0, 4)
    passes.clear()                                  # for five tokens another drafter has the request
    assert ours.propose([request(ids)], [2]).tokens.tolist() == greedy("near", ids, 2)
    assert passes == [[5], [1]]


def test_asked_twice_it_answers_the_same():
    """A draft that was never verified (the target's pass failed) leaves nothing behind that matters."""
    ours, ids = drafter(), [9, 8, 7]
    first = ours.propose([request(ids)], [4]).tokens
    assert torch.equal(ours.propose([request(ids)], [4]).tokens, first)


def test_a_drafter_that_stops_making_sense_drafts_less():
    """NaN behind some token: that request's draft ends before it, its mates' go on."""
    source = tiny.TinyDrafter("broken", tiny.llama(3))
    prompts = [[6, 5], [11, 2], [12, 30]]
    texts = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(4):
            ids.append(int(tiny.logits(source.model, ids)[-1].argmax()))
        texts.append(ids[2:])
    poisoned = texts[0][1]                          # the second token of the first request's draft
    source.model.get_input_embeddings().weight.data[poisoned] = torch.nan
    expected = []
    for prompt, text in zip(prompts, texts):
        bad = [i for i, t in enumerate(text) if t == poisoned]
        expected.append([] if poisoned in prompt else text[:bad[0] + 1] if bad else text)
    assert [len(e) for e in expected][0] == 2 and 4 in map(len, expected)
    ours = ModelDrafter(source, SLOTS, tiny.MAX_CONTEXT, tiny.VOCAB)
    assert split(ours.propose([request(p, i) for i, p in enumerate(prompts)], [4] * 3)) == expected
    # and with NaN from the very start, nothing at all
    assert split(ours.propose([request([poisoned, 1], 3)], [4])) == [[]]


def test_its_context_is_the_smaller_of_its_own_and_the_engines():
    assert drafter("short").max_context == 20 and drafter("short").runner.cache.max_len == 20
    assert ModelDrafter(tiny.family().drafters["near"], 2, 30).max_context == 30


def rounded(runner) -> set[bool]:
    return {product.bf16 for layer in runner.model.model.layers for product in vars(layer)["forward"].products}


@pytest.mark.skipif(not can_pack(torch.empty(1)), reason="this torch has no packed products")
@pytest.mark.parametrize("told, fast, drafts", [(None, True, True), (None, False, False), (True, False, True),
                                                (False, True, False)])
def test_drafters_multiply_in_bf16_where_the_cpu_is_made_for_it_or_the_engine_is_told(monkeypatch, told, fast, drafts):
    if drafts and not can_round():
        pytest.skip("this CPU cannot multiply in bf16")
    monkeypatch.setattr(build, "has_bf16", lambda: fast)
    family = tiny.family(torch.float32)
    with Engine(family, "near", bf16=told) as engine, Engine(family, "none", bf16=False) as plain:
        assert rounded(engine.target) == {told is True}
        assert rounded(engine.get_drafter("near").runner) == {drafts}
        if told is not True:        # whatever drafts in whatever precision, greedy text is the target's
            prompts, params = [[1, 2, 3], [4, 5]], SamplingParams(max_new_tokens=12)
            assert [r.output_ids for r in engine.generate(prompts, params)] == \
                [r.output_ids for r in plain.generate(prompts, params)]
