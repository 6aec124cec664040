"""Fused norms: the same numbers to the last bit, or none at all."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from spin_core.runtime.norm import FusedNorm, fuse_norms


class Shifted(LlamaRMSNorm):
    """A norm that looks like Llama's and adds one to its weight, as other families do."""

    def forward(self, x):
        return super().forward(x) * (1 + 1 / self.weight)


def norm(kind=LlamaRMSNorm, width: int = 24, dtype=torch.float32) -> nn.Module:
    torch.manual_seed(width)
    made = kind(width, eps=1e-5).to(dtype)
    nn.init.normal_(made.weight, 1.0, 0.2)
    return made


@pytest.mark.parametrize("width", [24, 64, 576])
@pytest.mark.parametrize("rows", [1, 3, 40])
@torch.no_grad()
def test_fused_is_the_same_to_the_last_bit(width, rows):
    plain = norm(width=width)
    holder = nn.Sequential(plain)
    assert fuse_norms(holder) == 1 and type(holder[0]) is FusedNorm
    for scale in (1e-4, 1.0, 1e3):
        x = scale * torch.randn(1, rows, width)
        assert torch.equal(holder[0](x), plain(x))


@torch.no_grad()
def test_a_changed_weight_is_used():
    plain = norm()
    holder, x = nn.Sequential(plain), torch.randn(1, 2, 24)
    fuse_norms(holder)
    plain.weight.mul_(3)
    assert torch.equal(holder[0](x), plain(x))


@pytest.mark.parametrize("made", [norm(Shifted), norm(dtype=torch.float64), norm(GemmaRMSNorm), nn.LayerNorm(24)],
                         ids=["other formula", "float64: the library rounds to float32", "Gemma", "LayerNorm"])
def test_what_is_not_the_same_stays(made):
    holder = nn.Sequential(made)
    assert fuse_norms(holder) == 0 and holder[0] is made
