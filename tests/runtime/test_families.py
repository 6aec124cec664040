"""The sweep over the model library: every causal LM architecture is served exactly, or refused with the reason."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

from spin_core import zoo
from spin_core.engine import Engine
from spin_core.lab.bench import families

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


def test_a_model_without_a_longest_text_is_refused_by_name():
    model = hf.XLNetLMHeadModel(hf.XLNetConfig(vocab_size=61, d_model=32, n_layer=1, n_head=4, d_inner=48)).eval()
    with pytest.raises(ValueError, match="'xlnet': its config states max_position_embeddings=-1"):
        zoo._max_context(model, "xlnet")
    with pytest.raises(ValueError, match="the family's max_context must be at least 2, got -1"):
        Engine(zoo.Family("xlnet", model, None, {}, 60, (), -1, dtype=torch.float32), "ngram")


def test_a_refusal_names_the_layer_and_what_it_keeps():
    row = families.compare("jamba", ONE)
    assert "layer 0 is of the kind linear_attention: it keeps a recurrent state" in row["reason"]
