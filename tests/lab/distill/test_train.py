"""The trainer's parts: plain functions compute what the served models do, the loss is its definition, states
survive."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from spin_core.draft import Eagle3Llama, FedLlama
from spin_core.lab.distill import fused, loss, reading, train
from spin_core.lab.distill.kinds import kind_of, user_turns
from spin_core.lab.distill.recipes import LADDER, SPIRE, Recipe, begin, rung_name
from spin_core.lab.distill.unroll import unroll
from spin_core.workloads import load_workload
from spin_core.zoo.fed import LAST
from tests import tiny

HEAD = Recipe(vocab=24, form="eagle3", reads=(1, 2, 4))
RECIPES = {"head": HEAD, "two": replace(HEAD, layers=2, vocab=30), "fed": Recipe(vocab=30, reads=(1, 2, LAST)),
           "one state": Recipe(vocab=30, reads=(LAST,), layers=2),
           "plain": Recipe(layers=3, vocab=30, form="plain", reads=(), depth=1),
           **{rung: replace(recipe, vocab=30, window=recipe.window and 5) for rung, recipe in LADDER.items()}}


def model_of(parameters, recipe, target):
    """The model that serves a drafter's parameters."""
    config = type(target.config)(**target.config.to_dict() | {"num_hidden_layers": recipe.layers,
                                                              "tie_word_embeddings": False})
    config.window, config.carry = recipe.window, recipe.carry
    if recipe.form != "plain":
        config.layers_read = recipe.reads
    model = {"fed": FedLlama, "eagle3": Eagle3Llama, "plain": LlamaForCausalLM}[recipe.form](config)
    own = {key if key.startswith(("fc", "fuse", "mix")) else f"model.{key}": value for key, value in parameters.items()}
    assert not model.load_state_dict(own, strict=False).unexpected_keys
    model.model.embed_tokens, model.lm_head = target.model.embed_tokens, nn.Linear(1, 1)
    return model.eval()


@pytest.mark.parametrize("name", list(RECIPES))
def test_the_trainer_computes_what_the_model_computes(family, name):
    recipe, target = RECIPES[name], family.target
    torch.manual_seed(0)
    layers = tuple(layer for layer in recipe.reads if layer != LAST)
    trainer = train.DrafterTrainer(name, recipe, target, torch.arange(recipe.vocab), layers, compiled=False)
    trainer.put({key: value + .1 * torch.randn(value.shape) for key, value in trainer.parameters.items()
                 if key in ("fc.weight", "fuse.weight", "mix")})
    tokens, whole = torch.randint(0, tiny.VOCAB, (3, 15)), torch.randn(3, 15, 32 * (len(layers) + 1))
    places = [len(layers) if layer == LAST else layers.index(layer) for layer in recipe.reads] or [0]
    read = torch.cat([whole.split(32, -1)[place] for place in places], -1)
    with torch.no_grad():
        expected = unroll(model_of(trainer.parameters, recipe, target), tokens, read, 4)
    place = torch.tensor([3, 4, 5])[:, None] + torch.arange(9)
    batch = train.Batch(whole[:, :-1], target.model.embed_tokens(tokens), place, place >= 0,
                        reading.Reader(target, tiny.VOCAB, (), compiled=False).angles(15), place, place, place)
    bodies = trainer.bodies(fused.tree(trainer.parameters), batch, 4)
    assert len(bodies) == (1 if recipe.form == "plain" else 4)
    at = (place + 1)[..., None].expand(-1, -1, 32)
    for depth, (ours, theirs) in enumerate(zip(bodies, expected)):
        torch.testing.assert_close(ours[:, depth:], theirs.gather(1, at)[:, depth:], rtol=1e-4, atol=1e-4)


def test_rungs_differ_in_what_they_are_called_for(family):
    made = {rung: begin(rung, RECIPES[rung], family.target) for rung in LADDER}
    for rung, weights in made.items():
        begins_elsewhere = rung in ("random initialisation", "also no target activations")
        last = family.target.model.layers[-1].mlp.up_proj.weight
        assert torch.equal(weights["layers.0.mlp.up_proj.weight"], last) != begins_elsewhere
        assert ("mix" in weights) == (RECIPES[rung].carry == "mix") == (rung not in ("no feedback memory",
                                                                                     "also no target activations"))
    assert {rung_name(r) for r in LADDER} >= {"spire", "spire-no-sparse-KV-cache"} and len(set(LADDER.values())) == 7
    assert SPIRE.window == 64


def test_reader_reads_what_the_target_computes(family):
    reader = reading.Reader(family.target, family.vocab_size, (0, 2, 4), compiled=False)
    tokens = torch.randint(0, tiny.VOCAB, (2, 9))
    kept = []
    hook = family.target.model.norm.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    with torch.no_grad():
        out = family.target.model(tokens, output_hidden_states=True)
    hook.remove()
    expected = torch.cat([out.hidden_states[0], out.hidden_states[2], kept[0], out.last_hidden_state], -1)
    torch.testing.assert_close(reader.states(tokens), expected, rtol=1e-4, atol=1e-4)
    logits = family.target(tokens).logits[0]
    torch.testing.assert_close(reader.log_z(out.last_hidden_state[0]), logits.logsumexp(-1).detach(), rtol=1e-4,
                               atol=1e-4)


@pytest.mark.parametrize("overlap, hard", [(.5, False), (0.0, False), (.9, False), (0.0, True), (.3, True)])
def test_the_gradient_is_that_of_the_loss(overlap, hard):
    generator = torch.Generator().manual_seed(3)
    logits, other = (torch.randn(300, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    weight = torch.rand(300, generator=generator, dtype=torch.float64)
    p = loss.probabilities(other, other.logsumexp(-1) + .3)     # some of the mass lies outside the draft vocabulary
    if hard:
        p = nn.functional.one_hot(torch.randint(6, (300,), generator=generator), 6)[:, :5].double()
    z = logits.clone().requires_grad_(True)
    log_q = z.log_softmax(-1)
    shared = torch.minimum(p, log_q.exp()).sum(-1)
    expected = (weight * (-(1 - overlap) * (p * log_q).sum(-1) - overlap * shared)).sum()
    expected.backward()
    gradient, value, found = loss.loss_and_gradient(logits, p, weight, overlap)
    torch.testing.assert_close(gradient, z.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(value.double(), expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.double(), (weight * shared).sum().detach(), rtol=1e-5, atol=1e-5)


def test_store_is_a_ring_that_survives(tmp_path):
    path = tmp_path / "states.bin"
    store = reading.Store(path, 4, 10)
    texts = {name: (torch.randn(count, 4).bfloat16().float(), torch.randn(count)) for name, count in
             (("a", 4), ("b", 5), ("c", 3), ("d", 6))}
    for name in "abc":                  # c does not fit behind b, and takes a's place
        store.put(name, *texts[name])
    assert "a" not in store and "b" in store
    store.save()
    store.put("d", *texts["d"])         # runs over b; then the process dies
    again = reading.Store(path, 4, 10)
    assert "b" not in again and "d" not in again and list(again.where) == ["c"]
    assert all(map(torch.equal, again.get("c"), texts["c"]))
    assert not reading.Store(path, 4, 11).where, "of another size: begun anew"


def test_a_store_has_room_for_all_its_rows_or_is_refused(tmp_path):
    """Where the disk is full only when a mapped file is written to, the system ends the process."""
    store = reading.Store(tmp_path / "states.bin", 64, 1000)
    assert os.stat(tmp_path / "states.bin").st_blocks * 512 >= 64 * 1000 * 2 == store.states.nbytes
    with tiny.little_room(), pytest.raises(OSError, match=f"cannot write {tmp_path / 'other.bin'}, of 0.000128 GB"):
        reading.Store(tmp_path / "other.bin", 64, 1000)
    assert not (tmp_path / "other.bin").exists()


@pytest.mark.parametrize("text, kind", [
    ("Write a Python function that reverses a string.", "code"), ("Give me five facts about bees", "code"),
    ("Write a poem about rain", "story"), ("Act as a grumpy chef. Tom asks you about soup.", "story"),
    ("What is 12% of 59?", "facts"), ("Translate into French: \"I like tea.\"", "facts"),
    ("Tell me about volcanoes", "other"), ("How does one measure sleep?", "other")])
def test_kinds(text, kind):
    assert kind_of([text]) == kind
    assert kind_of(user_turns(f"system\nYou help.\nuser\n{text}\nassistant\n")) == kind


@pytest.mark.parametrize("kind, categories, least", [
    ("code", {"code", "coding"}, .7), ("facts", {"math", "maths", "translate"}, .7),
    ("story", {"story", "character", "coach", "critic", "expert", "game", "guide", "helper", "historical",
               "interviewer",
               "professional", "teacher", "writer"}, .8)])
def test_kinds_are_those_of_the_workloads_categories(kind, categories, least):
    """On the test split, which the rules were not written from."""
    found = [kind_of([m["content"] for m in prompt.messages if m["role"] == "user"])
             for prompt in load_workload("mix", "test") if prompt.category in categories]
    assert found.count(kind) / len(found) >= least, f"{len(found)} prompts: {found}"
