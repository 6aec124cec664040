"""Other model families: on ragged batches, through the library's own code where that cannot be, or refused."""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import lru_cache

import numpy as np
import pytest
import tiny
import torch
import transformers as hf

from spin_core.decompose import attend, layout, needs
from spin_core.lab.rivals.flex import FlexStep
from spin_core.runtime import ModelRunner

SIZES = dict(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.2,
             max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None)
GROUPED = SIZES | dict(num_key_value_heads=2, intermediate_size=48)
GPT = dict(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.2,
           bos_token_id=None, eos_token_id=None)

RUN = {
    "gpt_neox": lambda: hf.GPTNeoXConfig(**SIZES, intermediate_size=48),
    "gpt2": lambda: hf.GPT2Config(**GPT),
    "opt": lambda: hf.OPTConfig(vocab_size=61, hidden_size=32, word_embed_proj_dim=32, num_hidden_layers=2, ffn_dim=48,
                                num_attention_heads=4, max_position_embeddings=64, init_std=0.2,
                                bos_token_id=None, eos_token_id=None),
    "qwen2": lambda: hf.Qwen2Config(**GROUPED),
    "qwen3": lambda: hf.Qwen3Config(**GROUPED, head_dim=8),
    "mistral without a window": lambda: hf.MistralConfig(**GROUPED, sliding_window=None),
    "phi": lambda: hf.PhiConfig(**GROUPED),
    "olmo2": lambda: hf.Olmo2Config(**GROUPED),
    "granite (its own attention scale)": lambda: hf.GraniteConfig(**GROUPED, attention_multiplier=0.7),
    "ministral3 (queries scaled by position)": lambda: hf.Ministral3Config(**GROUPED, head_dim=8),
    "glm4 moe (heads rotated in part)": lambda: hf.Glm4MoeConfig(
        **GROUPED, head_dim=8, first_k_dense_replace=2, moe_intermediate_size=16, n_routed_experts=4,
        num_experts_per_tok=2),
}
WINDOWED = GROUPED | dict(sliding_window=4)
EXPERTS = dict(num_local_experts=2, num_experts_per_tok=1)
# what layers need beside plain attention; windows and chunks are shorter than the texts
RUN |= {
    "mistral with a window": lambda: hf.MistralConfig(**WINDOWED),
    "qwen2 with a window in its second layer": lambda: hf.Qwen2Config(
        **WINDOWED, layer_types=["full_attention", "sliding_attention"], use_sliding_window=True),
    "gemma2 (capped scores)": lambda: hf.Gemma2Config(**WINDOWED, head_dim=8, attn_logit_softcapping=3.0),
    "gpt_oss (sinks)": lambda: hf.GptOssConfig(**WINDOWED, head_dim=8, **EXPERTS),
    "llama4 (chunks)": lambda: hf.Llama4TextConfig(
        **GROUPED, head_dim=8, attention_chunk_size=4, num_local_experts=2, intermediate_size_mlp=48,
        interleave_moe_layer_step=100, no_rope_layers=[1, 0]),
    "deepseek v3 (keys wider than values)": lambda: hf.DeepseekV3Config(
        **SIZES | dict(num_key_value_heads=4, intermediate_size=48, first_k_dense_replace=2, q_lora_rank=16,
                       kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=6, head_dim=4)),
    "nemotron (layers that are not told of the batch)": lambda: hf.NemotronConfig(**GROUPED, head_dim=8),
    "stablelm": lambda: hf.StableLmConfig(**GROUPED),
    # attention of their own: one request at a time, through the library's code
    "bloom": lambda: hf.BloomConfig(vocab_size=61, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.2),
    "falcon with alibi": lambda: hf.FalconConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2, alibi=True,
                                                 num_attention_heads=4, initializer_range=0.2),
    "phimoe": lambda: hf.PhimoeConfig(**GROUPED | dict(pad_token_id=0), sliding_window=4, **EXPERTS),
    "doge": lambda: hf.DogeConfig(**GROUPED | dict(pad_token_id=0), sliding_window=4),
}
LIBRARY = {"bloom", "falcon with alibi", "doge"}
REFUSE = {
    # a request's positions would depend on its batch mates
    "longrope": (lambda: hf.LlamaConfig(**GROUPED, rope_parameters=dict(
        rope_theta=1e4, rope_type="longrope", short_factor=[1.0] * 4, long_factor=[4.0] * 4, factor=4.0,
        original_max_position_embeddings=16)), "rope_type='longrope'"),
    "dynamic": (lambda: hf.LlamaConfig(**GROUPED,
                                       rope_parameters=dict(rope_theta=1e4, rope_type="dynamic", factor=2.0)),
                "rope_type='dynamic'"),
    # a recurrent state cannot be taken back
    "lfm2": (lambda: hf.Lfm2Config(**GROUPED, layer_types=["conv", "full_attention"]),
             "layer 0 is of the kind conv: it keeps a recurrent state"),
    "mamba": (lambda: hf.MambaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2),
              "layer 0 is of the kind linear"),
    # generate and forward of the library differ: there is no text to be equal to
    "moshi": (lambda: hf.MoshiConfig(**SIZES | dict(num_key_value_heads=2, head_dim=8, ffn_dim=48), sliding_window=8),
              "layer 0 shows a token all of its past, but the library's cache keeps 8 tokens"),
    # an encoder: every token sees all
    "bert": (lambda: hf.BertConfig(**SIZES | dict(pad_token_id=0), intermediate_size=48),
             "reads a text in parts otherwise than at once"),
}


EAGER = re.compile("gemma2|gpt_oss|bloom|falcon")


def build(config, dtype=torch.float64) -> hf.PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = hf.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    model.set_experts_implementation("eager")       # the grouped product knows no float64
    return model


@lru_cache
def library(name: str, dtype: torch.dtype) -> hf.PreTrainedModel:
    return build(RUN[name](), dtype)


def quiet(name: str):
    """Expects the warning that a model runs one request at a time, of those that do."""
    return pytest.warns(RuntimeWarning, match="one request at a time") if name in LIBRARY else nullcontext()


@pytest.mark.parametrize("dtype, atol", [(torch.float64, 1e-12), (torch.float32, 1e-4)])    # the second one packs
@pytest.mark.parametrize("name", RUN)
@torch.no_grad()
def test_runs_as_its_own_forward_does(name, dtype, atol):
    model = library(name, dtype)
    with quiet(name):
        ours = ModelRunner(model, slots=3, max_len=32)
    # the library's plain attention: softmax in single precision
    atol = max(atol, 1e-6 if EAGER.search(name) else 0)
    a, b = [5, 60, 7, 8, 33, 10, 11], [40, 41, 42, 5, 44, 45, 46, 47, 48, 9, 12]
    first = ours.forward([2, 0], [3, 8], a[:3] + b[:8], [2, 10])
    then = ours.forward([0, 2], [3, 4], b[8:] + a[3:], [2, 6])
    plain_a, plain_b = tiny.logits(model, a), tiny.logits(model, b)
    assert plain_a.std() > 1e-3, "a model that says nothing would agree with anything"
    for ours_row, plain in zip((*first, *then), (plain_a[2], plain_b[7], plain_b[10], plain_a[6])):
        assert torch.allclose(ours_row, plain, rtol=0, atol=atol)


@pytest.mark.parametrize("name",
                         ["llama", *(name for name in RUN if name not in ("gpt2", "opt", "phi", "olmo2", "qwen3"))])
@torch.no_grad()
def test_trees_are_read_as_their_paths_are(name):
    """Behind a prefix longer than the window, in two levels: the second finds the first in the cache."""
    model = library(name, torch.float64) if name in RUN else build(hf.LlamaConfig(**GROUPED), torch.float64)
    with quiet(name):
        ours = ModelRunner(model, slots=2, max_len=40)
    text, other = [5, 60, 7, 8, 33, 10, 11], [9, 9, 12]
    ours.forward([1, 0], [7, 3], text + other, [])
    first = torch.eye(3).bool()
    first[2, 0] = True                                      # nodes 20 and 21 follow the text, 22 follows 20
    rows = [ours.forward([1, 0], [3, 1], [20, 21, 22, 50], [0, 1, 2, 3], [first, None])]
    second = torch.tensor([[1, 0, 1, 1, 0], [0, 1, 0, 0, 1]]).bool()        # 23 follows 22, 24 follows 21
    rows.append(ours.forward([1], [2], [23, 24], [0, 1], [second]))
    paths = [text + [20], text + [21], text + [20, 22], other + [50], text + [20, 22, 23], text + [21, 24]]
    for row, path in zip(torch.cat(rows), paths):
        assert torch.allclose(row, tiny.logits(model, path)[-1], rtol=0, atol=1e-6)
    ours.keep([1], [7], [[0, 2, 3]])
    ours.cache.truncate(1, 10)
    assert torch.allclose(ours.forward([1], [1], [25], [0])[0],
                          tiny.logits(model, text + [20, 22, 23, 25])[-1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", REFUSE)
def test_is_refused_at_once_and_by_name(name):
    config, reason = REFUSE[name]
    model = build(config(), torch.float32)
    with pytest.raises(NotImplementedError, match=reason) as caught:
        ModelRunner(model, slots=3, max_len=32)
    assert type(model).__name__ in str(caught.value)


def test_a_model_that_differs_from_itself_is_refused(monkeypatch):
    """A layer that the adapter would get wrong without noticing: the check at load sees it, and can be switched off."""
    model = build(hf.LlamaConfig(**GROUPED), torch.float64)
    monkeypatch.setattr(type(model.model.layers[0].self_attn), "scaling", property(lambda self: 0.1), raising=False)
    monkeypatch.setattr("spin_core.runtime.attention.Ragged.attend", lambda self, layer, query, key, value, scale:
                        self.layers.add(layer) or value.repeat_interleave(2, 1))
    monkeypatch.setattr("spin_core.runtime.library.LibraryPasses.logits", lambda self, batch, rows:
                        torch.zeros(len(rows), 61, dtype=torch.float64))
    with pytest.raises(NotImplementedError, match=r"LlamaForCausalLM cannot be served: its logits differ from the "
                       r"library's by 1.0e\+00 of the largest"):
        ModelRunner(model, slots=1, max_len=32)
    ModelRunner(model, slots=1, max_len=32, check=False)


WRONG = {       # strategy: what is broken, how, and where the check must find it
    ("auto", "pools"): (attend, "rectangle", lambda whole: lambda *args: whole(*args) * 1.01, "drafts, grouped"),
    ("padded", "pools"): (attend, "rectangle", lambda whole: lambda *args: whole(*args) * 1.01, "drafts, padded"),
    ("auto", "merging"): (attend, "merge_pieces", lambda whole: lambda *args: whole(*args) * 1.01,
                          "drafts, decomposed"),
    ("auto", "masks"): (layout, "_tail", lambda whole: lambda *args: None, "drafts, per-request"),
    ("decomposed", "trees"): (needs, "in_flight_mask",
                              lambda whole: lambda batch, b: np.tri(batch.counts[b], dtype=bool),
                              "drafts, decomposed"),
    ("flex", "rows"): (FlexStep, "attend", lambda whole: lambda *args: whole(*args) * 1.01, "drafts, flex"),
}


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("strategy, what", WRONG)
def test_attention_that_is_wrong_under_one_strategy_is_found(monkeypatch, strategy, what, slots):
    """The check at load tries each strategy that the engine may use, with chains and trees, and measures nothing."""
    monkeypatch.setattr("spin_core.decompose.strategies.measured", lambda *_: pytest.fail("measured"))
    model = build(hf.LlamaConfig(**GROUPED), torch.float64)
    ModelRunner(model, slots=slots, max_len=32, verification=strategy)
    holder, name, breaks, where = WRONG[strategy, what]
    monkeypatch.setattr(holder, name, breaks(getattr(holder, name)))
    if (strategy, what, slots) == ("auto", "pools", 1):         # a single request is in no group
        ModelRunner(model, slots=slots, max_len=32, verification=strategy)
        return
    with pytest.warns(RuntimeWarning, match=rf"one request at a time.* more than rounding \({where}\)"):
        ModelRunner(model, slots=slots, max_len=32, verification=strategy)


def test_rings_change_no_logit_and_no_text():
    """Windows of 4 tokens, rings of 4 + 5 + 64 in a text of 150: long chunks in parts, drafts rolled back, trees
    kept."""
    model = build(hf.Gemma2Config(**WINDOWED | dict(max_position_embeddings=200), head_dim=8,
                                  attn_logit_softcapping=3.0), torch.float64)
    ours = ModelRunner(model, slots=2, max_len=180, chunk=5)
    assert sorted({k.shape[2] for k in ours.cache.k}) == [73, 180]
    text = torch.randint(0, 61, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    expected = tiny.logits(model, text)
    whole = ours.forward([0, 1], [150, 1], text + [7], [149, 20, 150])          # more than rings take at once
    assert torch.allclose(whole[:2], expected[[149, 20]], rtol=0, atol=1e-6)
    read = 0
    tree = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 1, 1]]).bool()
    ours.cache.truncate(0, 0)
    while read < 140:
        rows = ours.forward([0], [4], text[read:read + 4], [3])                  # of which one is taken back
        assert torch.allclose(rows[0], expected[read + 3], rtol=0, atol=1e-6)
        ours.cache.truncate(0, read + 3)
        rows = ours.forward([0], [3], [9, *text[read + 3:read + 5]], [1, 2], [tree])
        assert torch.allclose(rows, expected[read + 3:read + 5], rtol=0, atol=1e-6)
        ours.keep([0], [read + 3], [[1, 2]])
        read += 5
        ours.cache.truncate(0, read)
    ours.cache.truncate(0, read - 70)
    assert ours.cache.lengths[0] == 0


def test_attention_output_is_contiguous_as_the_library_s_is():
    """Models may take a view of it."""
    model, seen = build(RUN["stablelm"](), torch.float64), []
    ours = ModelRunner(model, slots=2, max_len=32)
    for layer in ours.model.model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    ours.forward([0], [5], [1, 2, 3, 4, 5], [4])
    ours.forward([0, 1], [1, 2], [6, 7, 8], [0])
    assert len(seen) == 4 and all(x.is_contiguous() for x in seen)


def test_a_window_that_holds_every_text_is_none():
    model = build(hf.MistralConfig(**GROUPED, sliding_window=32), torch.float64)
    assert not ModelRunner(model, slots=1, max_len=32).ready.odd
