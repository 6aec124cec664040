"""Other model families: those that attend through the library's registry run as they are, the rest is refused."""

from __future__ import annotations

import pytest
import tiny
import torch
import transformers as hf

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
REFUSE = {
    "mistral with a window": (lambda: hf.MistralConfig(**GROUPED, sliding_window=4), "sliding_window=4"),
    "gemma2": (lambda: hf.Gemma2Config(**GROUPED, head_dim=8, attn_logit_softcapping=30.0,
                                       layer_types=["full_attention"] * 2), "softcap=30.0"),
    # attention of their own: the layers would see all requests as one sequence
    "bloom": (lambda: hf.BloomConfig(vocab_size=61, hidden_size=32, n_layer=2, n_head=4), "only 0 of 2 layers"),
    "falcon": (lambda: hf.FalconConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
               "only 0 of 2 layers"),
    # limits that the library puts into masks, which nobody asks for here
    "phimoe": (lambda: hf.PhimoeConfig(**GROUPED | dict(pad_token_id=0), sliding_window=8, num_local_experts=4),
               "sliding_window=8"),
    "doge": (lambda: hf.DogeConfig(**GROUPED | dict(pad_token_id=0), sliding_window=8), "sliding"),
    "llama4": (lambda: hf.Llama4TextConfig(**GROUPED, head_dim=8, attention_chunk_size=8, num_local_experts=2,
                                           intermediate_size_mlp=48, interleave_moe_layer_step=100,
                                           no_rope_layers=[1, 1]), "layers of the kinds chunked_attention"),
    # a request's positions would depend on its batch mates
    "longrope": (lambda: hf.LlamaConfig(**GROUPED, rope_parameters=dict(
        rope_theta=1e4, rope_type="longrope", short_factor=[1.0] * 4, long_factor=[4.0] * 4, factor=4.0,
        original_max_position_embeddings=16)), "rope_type='longrope'"),
    "dynamic": (lambda: hf.LlamaConfig(**GROUPED, rope_parameters=dict(rope_theta=1e4, rope_type="dynamic", factor=2.0)),
                "rope_type='dynamic'"),
    # one layer of convolution, one of attention: half of it would be right
    "lfm2": (lambda: hf.Lfm2Config(**GROUPED, layer_types=["conv", "full_attention"]), "only 1 of 2 layers"),
    "mamba": (lambda: hf.MambaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2), "no attention heads"),
}


def build(config, dtype=torch.float64) -> hf.PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return hf.AutoModelForCausalLM.from_config(config).to(dtype).eval()


@pytest.mark.parametrize("dtype, atol", [(torch.float64, 1e-12), (torch.float32, 1e-4)])    # the second one packs
@pytest.mark.parametrize("name", RUN)
@torch.no_grad()
def test_runs_as_its_own_forward_does(name, dtype, atol):
    model = build(RUN[name](), dtype)
    ours = ModelRunner(model, slots=3, max_len=32)
    a, b = [5, 60, 7, 8, 33, 10, 11], [40, 41, 42, 5, 44, 45, 46, 47, 48, 9, 12]
    first = ours.forward([2, 0], [3, 8], a[:3] + b[:8], [2, 10])
    then = ours.forward([0, 2], [3, 4], b[8:] + a[3:], [2, 6])
    plain_a, plain_b = tiny.logits(model, a), tiny.logits(model, b)
    assert plain_a.std() > 1e-3, "a model that says nothing would agree with anything"
    for ours_row, plain in zip((*first, *then), (plain_a[2], plain_b[7], plain_b[10], plain_a[6])):
        assert torch.allclose(ours_row, plain, rtol=0, atol=atol)


@pytest.mark.parametrize("name", REFUSE)
def test_is_refused_at_once_and_by_name(name):
    config, reason = REFUSE[name]
    model = build(config(), torch.float32)
    with pytest.raises(NotImplementedError, match=reason) as caught:
        ModelRunner(model, slots=3, max_len=32)
    assert type(model).__name__ in str(caught.value)
