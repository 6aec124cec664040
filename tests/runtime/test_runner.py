"""ModelRunner against the model's own forward pass over whole sequences."""

from __future__ import annotations

import copy
import random

import pytest
import tiny
import torch
from hypothesis import given, settings, strategies as st

from spin_core.decompose.plan import STRATEGIES
from spin_core.runtime import ModelRunner

SLOTS, ROOM = 4, 24
is_lookup = settings(max_examples=40, deadline=None)
strategies = st.sampled_from(STRATEGIES)        # ways to attend to a ragged batch, which must not show


def runner(**changes) -> ModelRunner:
    made = ModelRunner(tiny.family().target, **dict(slots=SLOTS, max_len=ROOM) | changes)
    poison(made)
    return made


def poison(runner: ModelRunner) -> None:
    """NaN in every stale entry: one that is read, even with a tiny weight, shows."""
    for slot, length in enumerate(runner.cache.lengths):
        for store in runner.cache.k + runner.cache.v:
            store[slot, :, length:] = torch.nan


def close(ours: torch.Tensor, plain: torch.Tensor) -> bool:
    return torch.allclose(ours, plain, rtol=0, atol=1e-12)     # NaN is close to nothing


tokens = st.integers(0, tiny.VOCAB - 1)


@st.composite
def passes(draw) -> list[list[tuple[int, int, list[int]]]]:
    """Passes over slots in any order: (slot, how many committed tokens to take back first, tokens to feed)."""
    lengths, plan = [0] * SLOTS, []
    for _ in range(draw(st.integers(1, 5))):
        batch = []
        for slot in draw(st.lists(st.integers(0, SLOTS - 1), min_size=1, unique=True)):
            back = draw(st.integers(0, lengths[slot]))
            room = ROOM - lengths[slot] + back
            if room:
                new = draw(st.lists(tokens, min_size=1, max_size=min(room, draw(st.sampled_from([1, 1, 4, 9])))))
                lengths[slot] += len(new) - back
                batch.append((slot, back, new))
        if batch:
            plan.append(batch)
    return plan


@is_lookup
@given(plan=passes(), strategy=strategies)
def test_any_mixture_of_chunks_decodes_and_rollbacks_equals_the_model(plan, strategy):
    ours, held = runner(verification=strategy), [[] for _ in range(SLOTS)]
    for batch in plan:
        for slot, back, new in batch:
            ours.cache.truncate(slot, len(held[slot]) - back)
            held[slot] = held[slot][:len(held[slot]) - back] + new
        poison(ours)
        counts = [len(new) for _, _, new in batch]
        flat = [t for _, _, new in batch for t in new]
        out = ours.forward([slot for slot, _, _ in batch], counts, flat, list(range(len(flat))))
        plain = torch.cat([tiny.logits(tiny.family().target, held[slot])[-n:]
                           for (slot, _, _), n in zip(batch, counts)])
        assert close(out, plain)
        assert ours.cache.lengths == [len(h) for h in held]


@is_lookup
@given(st.data())
def test_only_the_asked_rows_come_back_in_the_asked_order(data):
    ours = runner()
    flat = data.draw(st.lists(tokens, min_size=3, max_size=12))
    rows = data.draw(st.lists(st.integers(0, len(flat) - 1), max_size=5))
    every = ours.forward([0], [len(flat)], flat, list(range(len(flat))))
    assert close(ours.forward([1], [len(flat)], torch.tensor(flat), rows), every[rows])


@st.composite
def trees(draw) -> tuple[list[int], list[int]]:
    """Tokens of a random forest in topological order, and the parent of each (-1: the committed sequence)."""
    nodes = draw(st.lists(tokens, min_size=1, max_size=8))
    return nodes, [draw(st.integers(-1, i - 1)) for i in range(len(nodes))]


def path(parents: list[int], node: int) -> list[int]:
    """Nodes from the root to ``node``."""
    return ([] if node < 0 else path(parents, parents[node]) + [node])


@is_lookup
@given(tree=trees(), prefix=st.lists(tokens, max_size=9), chain=st.lists(tokens, min_size=1, max_size=5),
       strategy=strategies)
def test_a_tree_node_sees_its_ancestors_and_nothing_beside_them(tree, prefix, chain, strategy):
    (nodes, parents), target = tree, tiny.family().target
    ours = runner(verification=strategy)
    if prefix:
        ours.forward([2], [len(prefix)], prefix, [])
    mask = torch.zeros(len(nodes), len(nodes), dtype=torch.bool)
    for node in range(len(nodes)):
        mask[node, path(parents, node)] = True
    # a chain of another request rides along in the same pass
    out = ours.forward([0, 2], [len(chain), len(nodes)], chain + nodes, list(range(len(chain) + len(nodes))),
                       [None, mask])
    assert close(out[:len(chain)], tiny.logits(target, chain))
    for node in range(len(nodes)):
        root_path = [nodes[n] for n in path(parents, node)]
        assert close(out[len(chain) + node], tiny.logits(target, prefix + root_path)[-1])


def test_a_chain_given_as_a_tree_is_the_chain():
    ids = [5, 9, 2, 30, 7]
    tree = torch.ones(5, 5, dtype=torch.bool).tril()
    ours = runner()
    ours.forward([0, 1], [2, 2], [1, 4, 1, 4], [])
    out = ours.forward([0, 1], [5, 5], ids * 2, list(range(10)), [None, tree])
    assert close(out[:5], out[5:])


def test_a_full_slot_is_refused_before_anything_is_written():
    ours = runner()
    ours.forward([0, 1], [3, ROOM - 1], [1] * (ROOM + 2), [])
    lengths, stores = list(ours.cache.lengths), [s.clone() for s in ours.cache.k + ours.cache.v]
    with pytest.raises(ValueError, match=f"slot 1 holds {ROOM - 1} tokens"):
        ours.forward([0, 2, 1], [2, 1, 2], [7] * 5, [0])
    assert ours.cache.lengths == lengths
    for store, before in zip(ours.cache.k + ours.cache.v, stores):
        assert torch.equal(store.nan_to_num(99.0), before.nan_to_num(99.0))
    assert ours.forward([1], [1], [7], [0]).isfinite().all(), "the last free entry is usable"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nan_in_one_request_stays_there(strategy):
    """Its mates and the next user of its slot are unharmed."""
    target = tiny.llama()
    target.get_input_embeddings().weight.data[11] = torch.nan
    ours = ModelRunner(target, SLOTS, ROOM, verification=strategy)
    bad, good = [4, 11, 5], [4, 12, 5]
    out = ours.forward([3, 1], [3, 3], bad + good, [2, 5])
    assert out[0].isnan().all() and close(out[1], tiny.logits(target, good)[-1])
    ours.cache.truncate(3, 0)
    assert close(ours.forward([3], [3], good, [2])[0], tiny.logits(target, good)[-1])


def test_padding_of_the_head_is_cut():
    ids = [3, 1, 4, 1, 5]
    whole, cut = (runner(vocab_size=v).forward([0], [5], ids, [4]) for v in (None, tiny.VOCAB - 4))
    assert whole.shape == (1, tiny.VOCAB) and torch.equal(cut, whole[:, :tiny.VOCAB - 4])


def test_the_callers_model_is_left_as_it_was():
    model = tiny.llama()
    state, config = {k: v.clone() for k, v in model.state_dict().items()}, copy.deepcopy(model.config.to_dict())
    attention = model.config._attn_implementation
    before = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=12, do_sample=False, pad_token_id=0)
    ours = ModelRunner(model, SLOTS, ROOM)
    ours.forward([0], [2], [1, 2], [1])
    after = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert torch.equal(before, after)
    assert model.config._attn_implementation == attention and model.config.to_dict() == config
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(type(m).__module__ != "spin_core.runtime.linear" for m in model.modules())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_weights_are_shared_not_copied(dtype):
    model = tiny.llama(dtype=dtype)
    first, second = ModelRunner(model, SLOTS, ROOM), ModelRunner(model, SLOTS, ROOM)
    originals = {k: v.data_ptr() for k, v in [*model.named_parameters(), *model.named_buffers()]}
    for ours in (first, second):
        assert {k: v.data_ptr() for k, v in [*ours.model.named_parameters(), *ours.model.named_buffers()]} == originals
    with torch.no_grad():       # so a change of the weights reaches every runner
        model.lm_head.weight.mul_(2)
    one, two = (r.forward([0], [2], [1, 2], [1])[0] for r in (first, second))
    assert torch.equal(one, two)
    assert torch.allclose(one, tiny.logits(model, [1, 2])[-1], atol=1e-12 if dtype == torch.float64 else 1e-4)


def test_a_training_model_is_run_in_eval_mode_and_stays_in_training():
    model = tiny.llama(attention_dropout=0.5).train()
    ours = ModelRunner(model, SLOTS, ROOM)
    out = ours.forward([0], [6], [1, 2, 3, 4, 5, 6], [5])
    assert model.training
    assert close(out[0], tiny.logits(model.eval(), [1, 2, 3, 4, 5, 6])[-1])


def test_single_precision_stays_within_its_rounding():
    model, rng = tiny.family(torch.float32).target, random.Random(0)
    ours = ModelRunner(model, SLOTS, ROOM)
    a, b = ([rng.randrange(tiny.VOCAB) for _ in range(n)] for n in (9, 14))
    ours.forward([0, 1], [4, 11], a[:4] + b[:11], [])
    out = ours.forward([1, 0], [3, 5], b[11:] + a[4:], [2, 7])
    plain = torch.stack([tiny.logits(model, b)[-1], tiny.logits(model, a)[-1]])
    assert (out - plain).abs().max() < 1e-4 * plain.abs().max()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])       # the second one runs as blocks
@torch.no_grad()
def test_its_copy_of_the_model_runs_only_through_the_runner(dtype):
    with pytest.raises(RuntimeError, match="runs only through its ModelRunner"):
        ModelRunner(tiny.llama(dtype=dtype), 2, 32).model(input_ids=torch.tensor([[1, 2]]), use_cache=False)
