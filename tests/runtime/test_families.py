"""The sweep over the model library: every causal LM architecture is served exactly, or refused with the reason."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

from spin_core import zoo
from spin_core.engine import Engine
from spin_core.lab.bench import families
from spin_core.request import SamplingParams
from spin_core.runtime import ModelRunner
from spin_core.runtime.check import STATE

SAMPLE = ("llama", "mistral", "qwen2", "gemma", "gemma2", "gemma3_text", "gemma4_text", "gpt2", "gpt_neo", "gpt_oss",
          "falcon", "bloom", "mpt", "opt", "phi3", "mixtral", "deepseek_v3", "llama4_text", "nemotron", "stablelm",
          "cohere2", "olmo3", "granite_swa", "jamba")
ONE = families.RUNS[1:2]         # a batch with trees; the whole sweep runs the others too


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_families(name):
    check(families.compare(name, ONE), "REFUSED" if name == "jamba" else "EQUAL")


@pytest.mark.sweep
@pytest.mark.parametrize("name", families.names())
def test_every_family(name):
    row = families.compare(name)
    if row["outcome"] == "NOT BUILT":
        pytest.skip(row["reason"])
    check(row, "EQUAL" if row["outcome"] == "EQUAL" else "REFUSED")


def check(row: dict, outcome: str) -> None:
    assert row["outcome"] == outcome, row
    assert outcome == "EQUAL" or "cannot be served: " in row["reason"], row


def test_a_refusal_names_compressed_attention():
    row = families.compare("deepseek_v4", ONE)
    check(row, "REFUSED")
    assert "layer 0 is of the kind heavily_compressed_attention: it attends to a compressed past" in row["reason"]


@pytest.mark.parametrize("name, cause", [("deepseek_v32", "layer 0 chooses by an indexer which tokens it attends to"),
                                         ("xlm", "the library's code raises AssertionError")])
def test_a_refusal_names_its_cause_where_the_library_does_not(name, cause):
    row = families.compare(name, ONE)
    check(row, "REFUSED")
    assert f"cannot be served: {cause}" in row["reason"]


def test_a_model_without_a_longest_text_is_refused_by_name():
    model = hf.XLNetLMHeadModel(hf.XLNetConfig(vocab_size=61, d_model=32, n_layer=1, n_head=4, d_inner=48)).eval()
    with pytest.raises(ValueError, match="'xlnet': its config states max_position_embeddings=-1"):
        zoo._max_context(model, "xlnet")
    with pytest.raises(ValueError, match="the family's max_context must be at least 2, got -1"):
        Engine(zoo.Family("xlnet", model, None, {}, 60, (), -1, dtype=torch.float32), "ngram")


def test_a_recurrent_state_is_named_where_there_is_no_tiny_model(monkeypatch):
    monkeypatch.setattr(families, "build", lambda family: 1 / 0)
    assert families.compare("mamba2")["reason"].endswith(f"(and it {STATE})")
    assert families.compare("llama")["reason"] == "division by zero"


def test_drafters_of_other_families_draft_with_windows_of_their_own(monkeypatch):
    """Rings on both sides, shorter than the texts: the target's text stays, and drafts are accepted."""
    for module in ("loading", "runner"):
        monkeypatch.setattr(f"spin_core.runtime.{module}.DRAFT", 20)
    monkeypatch.setattr("spin_core.draft.model.CHUNK", 4)
    target = families.build("gemma2")
    models = {"near": families.near(target)} | {name: families.build(name) for name in ("mistral", "gpt2", "gpt_oss")}
    drafters = {name: zoo.DraftModel(name, model, None, families.CONTEXT) for name, model in models.items()}
    family = families._Tiny("tiny", target, None, drafters, families.PAD, (), families.CONTEXT, dtype=torch.float64)
    expected = [families.library_text(target, prompt) for prompt in families.PROMPTS]
    for name in drafters:
        engine = Engine(family, name, 3, max_batch=2, max_len=64, prefill_chunk=5)
        requests = engine.generate(families.PROMPTS, SamplingParams(max_new_tokens=families.TOKENS))
        assert [request.output_ids for request in requests] == expected and not engine.retired
        steps = [event for event in engine.trace.events if event.kind == "step"]
        assert sum(len(event.drafted) for event in steps) > 40
        assert name != "near" or sum(event.accepted for event in steps) > 20
        assert min(k.shape[2] for k in engine.target.cache.k) == 8 + 5 + 20
        ring = min(k.shape[2] for k in engine.get_drafter(name).runner.cache.k)
        assert ring == (64 if name == "gpt2" else 8 + 4 + 20)


def test_a_tree_is_cut_to_what_a_targets_rings_take():
    """They take back 64 tokens, however many more would fit into the text."""
    target = families.build("mistral")
    drafters = {"near": zoo.DraftModel("near", families.near(target), None, families.CONTEXT)}
    family = families._Tiny("tiny", target, None, drafters, families.PAD, (), families.CONTEXT, dtype=torch.float64)
    engine = Engine(family, "tree:near:3,3,3,3", max_batch=2, max_len=128, prefill_chunk=5)
    requests = engine.generate(families.PROMPTS, SamplingParams(max_new_tokens=families.TOKENS))
    assert [r.output_ids for r in requests] == [families.library_text(target, prompt) for prompt in families.PROMPTS]
    assert not engine.retired
    assert max(len(e.drafted) for e in engine.trace.events) == engine.target.longest_draft == 64


def test_drafters_that_read_states_need_ragged_batches():
    with pytest.raises(NotImplementedError,
                       match="cannot run on ragged batches, which a drafter that reads the target's "
                       "states needs: no layer attends"):
        ModelRunner(families.build("bloom"), slots=2, max_len=32, keep_states=True)


def test_the_check_at_load_can_be_switched_off(monkeypatch):
    target = families.build("llama")
    drafters = {"near": zoo.DraftModel("near", families.near(target), None, families.CONTEXT)}
    family = families._Tiny("tiny", target, None, drafters, families.PAD, (), families.CONTEXT, dtype=torch.float64)

    def compare(*_):
        raise ValueError("compared")

    monkeypatch.setattr("spin_core.runtime.loading.own_logits", compare)
    Engine(family, "near", max_batch=2, max_len=64, check=False)
    with pytest.raises(NotImplementedError, match="compared"):
        Engine(family, "near", max_batch=2, max_len=64)


@pytest.mark.parametrize("name", ["mistral", "olmo3"])
def test_a_sparse_cache_takes_layers_with_windows_as_they_are(name, monkeypatch):
    """They see what the ring holds of their own window: with a ring that holds it all, what the target sees."""
    monkeypatch.setattr("spin_core.runtime.loading.DRAFT", 20)
    target = families.build(name)
    family = families._Tiny("tiny", target, None, {}, families.PAD, (), families.CONTEXT, dtype=torch.float64)
    expected = [families.library_text(target, prompt) for prompt in families.PROMPTS]
    for drafter in ("sparse:target:64", "sparse:target:5"):
        engine = Engine(family, drafter, 3, max_batch=2, max_len=64, prefill_chunk=5)
        requests = engine.generate(families.PROMPTS, SamplingParams(max_new_tokens=families.TOKENS))
        assert [request.output_ids for request in requests] == expected and not engine.retired
        metrics = engine.trace.metrics()
        assert metrics["drafted"] > 40 and (metrics["accepted"] == metrics["drafted"]) == (drafter[-2:] == "64")


def test_a_refusal_names_the_layer_and_what_it_keeps():
    row = families.compare("jamba", ONE)
    assert "layer 0 is of the kind linear_attention: it keeps a recurrent state" in row["reason"]
