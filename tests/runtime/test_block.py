"""Fused decoder layers: what the library's layers compute, for the layers that are of this kind and for no others."""

from __future__ import annotations

import pytest
import tiny
import torch
from torch import nn
from transformers import (Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM, LlamaConfig,
                          LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM)

from spin_core.runtime import ModelRunner
from spin_core.runtime.attention import attach
from spin_core.runtime.block import Block, fuse_layers
from spin_core.runtime.linear import can_pack

pytestmark = pytest.mark.skipif(not can_pack(torch.empty(1)), reason="this torch has no packed products")
SIZES = dict(vocab_size=40, hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=6,
             num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0)


def model(kind=LlamaForCausalLM, config=LlamaConfig, dtype=torch.float32, **changes) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        made = kind(config(**SIZES | changes)).to(dtype).eval()
        for name, weight in made.named_parameters():        # norms of ones and biases of zeros would hide mistakes
            if weight.dim() == 1:
                nn.init.normal_(weight, 1.0, 0.3)
    return made


def blocks(model: nn.Module) -> list[Block]:
    return [vars(m)["forward"] for m in model.modules() if isinstance(vars(m).get("forward"), Block)]


@pytest.mark.parametrize("made", [
    model(), model(attention_bias=True, mlp_bias=True), model(hidden_act="gelu"), model(num_key_value_heads=6),
    model(head_dim=8), model(rms_norm_eps=0.1),
    model(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}),
    model(MistralForCausalLM, MistralConfig, sliding_window=None), model(Qwen2ForCausalLM, Qwen2Config),
], ids=["Llama", "biases", "another activation", "a key head each", "narrow heads", "large eps", "scaled rotation",
        "Mistral", "Qwen2"])
@torch.no_grad()
def test_a_runner_with_blocks_gives_the_models_logits(made):
    runner = ModelRunner(made, 2, 32)
    assert len(blocks(runner.model)) == 2 and not blocks(made)
    ids, other = list(range(3, 20)), [7, 1, 2]
    expected = made(torch.tensor([ids])).logits[0]
    runner.forward([1], [3], other, [2])
    first = runner.forward([0], [12], ids[:12], list(range(12)))
    rest = runner.forward([1, 0], [1, 5], [9, *ids[12:]], list(range(6)))     # ragged, behind a cache
    ours = torch.cat([first, rest[1:]])
    assert (ours - expected).abs().max() <= 1e-5 * expected.abs().max()
    beside = made(torch.tensor([[*other, 9]])).logits[0, -1]
    assert (rest[0] - beside).abs().max() <= 1e-5 * beside.abs().max()


class Unturned(nn.Module):
    """Attention without positions, as some layers of some families have it."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        for name, child in attention.named_children():
            setattr(self, name, child)
        self.layer_idx, self.head_dim, self.scaling = attention.layer_idx, attention.head_dim, attention.scaling
        self.config = attention.config
        self.plain = [attention]

    def forward(self, hidden_states, position_embeddings, **options):
        cos, sin = position_embeddings
        return self.plain[0](hidden_states, (torch.ones_like(cos), torch.zeros_like(sin)), **options)


def unturned() -> nn.Module:
    made = model()
    made.model.layers[1].self_attn = Unturned(made.model.layers[1].self_attn)
    return made


@pytest.mark.parametrize("made, fused", [
    (model(Qwen3ForCausalLM, Qwen3Config), 0), (model(Gemma2ForCausalLM, Gemma2Config), 0),
    (model(GraniteForCausalLM, GraniteConfig, residual_multiplier=0.5), 0),
    (model(MistralForCausalLM, MistralConfig, sliding_window=4), 2), (model(dtype=torch.float64), 0), (unturned(), 1),
], ids=["norms of queries and keys", "norms behind the parts", "a multiplier",
        "a sliding window, which is ours to keep", "float64",
        "one layer without rotation"])
def test_layers_of_other_kinds_stay(made, fused):
    attach(made)
    assert fuse_layers(made) == fused == len(blocks(made))


@torch.no_grad()
def test_whoever_listens_inside_a_layer_is_heard():
    made, heard = model(), []
    made.model.layers[0].mlp.register_forward_hook(lambda *given: heard.append(1))
    made.model.layers[1].register_forward_hook(lambda *given: heard.append(2))       # the layer as a whole: no matter
    runner = ModelRunner(made, 1, 8)
    assert len(blocks(runner.model)) == 1
    heard.clear()
    runner.forward([0], [2], [1, 2], [1])
    assert heard == [1, 2]


@torch.no_grad()
def test_all_layers_states_can_still_be_had():
    made = model()
    ids = torch.tensor([[1, 2, 3]])
    expected = made(ids, output_hidden_states=True).hidden_states
    runner = ModelRunner(made, 1, 8)            # behind the library's hooks, which sleep
    assert len(blocks(runner.model)) == 2
    seen = []
    runner.model.base_model.register_forward_hook(lambda *given: seen.append(given[-1].hidden_states))
    runner.model.base_model.config.output_hidden_states = True
    runner.forward([0], [3], [1, 2, 3], [2])
    assert len(seen[0]) == len(expected) == 3
    for ours, plain in zip(seen[0], expected):
        assert torch.allclose(ours, plain, atol=1e-5)


@torch.no_grad()
def test_a_changed_weight_is_used():
    made = model()
    runner = ModelRunner(made, 1, 8)
    layer = made.model.layers[1]
    for weight in (layer.input_layernorm.weight, layer.post_attention_layernorm.weight, layer.self_attn.k_proj.weight,
                   layer.mlp.up_proj.weight, layer.mlp.down_proj.weight):
        weight.mul_(1.5)
        runner.cache.truncate(0, 0)
        ours = runner.forward([0], [3], [1, 2, 3], [2])[0]
        assert torch.allclose(ours, tiny.logits(made, [1, 2, 3])[-1], atol=1e-4)
