"""EAGLE-3 heads in the engine: lossless in every way of drafting, and as good as counting says."""

from __future__ import annotations

import copy

import pytest
import tiny
import torch

from spin_core.lab.distill import corpus
from spin_core.lab.distill.evaluate import score, tokens_per_verification
from spin_core.lab.distill.states import compute
from spin_core.zoo.eagle3 import Eagle3Block
from spin_core.engine import Engine
from spin_core.request import SamplingParams
from spin_core.runtime import ModelRunner

PROMPTS = [*tiny.HEAD_PROMPTS, [11], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]]
GREEDY = SamplingParams(max_new_tokens=24, stop_ids=())


@pytest.mark.parametrize("options", [{}, {"pipeline": "async"}, {"pipeline": 2}, {"prefill_chunk": 4}], ids=str)
@pytest.mark.parametrize("drafter", ["head", "ngram+head", "sparse:head:8", "tree:head:2,2,1"])
def test_greedy_text_is_the_targets(drafter, options):
    if "pipeline" in options and drafter.startswith("tree:"):
        pytest.skip("trees are drafted without a pipeline")
    family = tiny.head_family()
    engine = Engine(family, drafter, 4, max_batch=3, **options)
    requests = engine.generate(PROMPTS, GREEDY)
    for request in requests:
        tiny.assert_greedy(family.target, request, stop_ids=())
    assert not engine.retired and engine.trace.metrics()["accepted"] > 0
    tiny.assert_idle(engine)


@pytest.mark.parametrize("gamma", [1, 4])
def test_engine_confirms_the_counted_tokens_per_verification(gamma):
    family = tiny.head_family()
    head = family.drafters["head"]
    engine = Engine(family, "head", gamma, max_batch=2)
    requests = engine.generate(PROMPTS, GREEDY)
    shard = corpus.Shard.build([r.prompt_ids for r in requests], [r.output_ids for r in requests], [0.0] * len(PROMPTS))
    states = compute(family.target, shard, family.vocab_size, layers=head.model.layers_read)
    kept = []
    hook = family.target.model.norm.register_forward_pre_hook(lambda module, args: kept.append(args[0][0]))
    with torch.no_grad():           # in the engine's precision
        outputs = [family.target.model(torch.tensor([r.ids]), output_hidden_states=True) for r in requests]
    hook.remove()
    states.hidden = torch.cat([o.last_hidden_state[0] for o in outputs])
    states.inputs = {0: torch.cat([o.hidden_states[0][0] for o in outputs]),
                     1: torch.cat([o.hidden_states[1][0] for o in outputs]), 3: torch.cat(kept)}
    scores = score(head.model, head.ids, family.target, shard, states, batch=2)
    counted = tokens_per_verification(scores, gamma)
    assert counted == pytest.approx(engine.trace.metrics()["tokens_per_verification"])
    assert counted > 1.1, "it must agree sometimes, or nothing is shown"


@pytest.mark.parametrize("seed", range(3))
def test_sampled_text_is_the_same_however_it_is_drafted(seed):
    """Micro-batches and asynchronous steps draw the same numbers as one batch."""
    params = SamplingParams(temperature=1.0, max_new_tokens=12, stop_ids=(), seed=seed)
    texts = [[r.output_ids for r in Engine(tiny.head_family(), "head", 3, max_batch=3, pipeline=way).generate(
        PROMPTS, params)] for way in ("off", "async", 2)]
    assert texts[0] == texts[1] == texts[2]


def test_states_of_a_pool_stand_side_by_side():
    """A head and a drafter fed with the last state, in one engine: each reads its own columns."""
    head, fed = tiny.head_family(), tiny.fed_family()
    model = fed.drafters["fed"].model
    family = tiny.TinyFamily(head.target, {**head.drafters, "fed": tiny.TinyDrafter("fed", model)})
    engine = Engine(family, "head", 3)
    assert engine.target.states.shape[2] == 4 * 32
    alone = Engine(head, "head", 3)
    assert [r.output_ids for r in engine.generate(PROMPTS, GREEDY)] == \
        [r.output_ids for r in alone.generate(PROMPTS, GREEDY)]
    assert engine.trace.metrics()["accepted"] == alone.trace.metrics()["accepted"] > 0
    for request in Engine(family, "fed", 3).generate(PROMPTS, GREEDY):
        tiny.assert_greedy(family.target, request, stop_ids=())


@pytest.mark.parametrize("normed", [False, True])
def test_first_layer_in_fewer_operations_computes_the_same(normed):
    model = copy.deepcopy(tiny.head_family().drafters["head"].model).float()
    model.model.layers[0].norm_before_residual = normed
    for layer_norm in (model.model.layers[0].hidden_norm, model.model.layers[0].input_layernorm):
        layer_norm.weight.data = torch.rand(32) + .5
    runner = ModelRunner(model, 2, 20)
    assert isinstance(runner.model.model.layers[0].forward, Eagle3Block)
    tokens, states = torch.randint(0, tiny.VOCAB, (1, 9)), torch.randn(1, 9, 32)
    with torch.inference_mode():
        expected = model(tokens, states).logits[0]
        ours = torch.cat([runner.forward([1], [count], tokens[0, at:at + count], list(range(count)),
                                         states=states[:, at:at + count]) for at, count in ((0, 5), (5, 1), (6, 3))])
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
