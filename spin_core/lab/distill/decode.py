"""Plain decoding of many prompts at once, for making training data: padded batches, nothing speculative.

The serving engine attends request by request, which is right for a few; here thousands of rows share one attention
call. What a drafter learns from, the states before the target's head and the distribution's normaliser, is computed on the way
anyway, so it is kept: no second pass over the text is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from spin_core.lab.distill.states import States
from spin_core.runtime.linear import pack_linears
from spin_core.runtime.loading import share_weights

NAME = "spin_core_padded"


class _Cache:
    """Keys and values ``[B, kv_heads, L, head_dim]`` of each layer; prompts are padded on the left to one width."""

    def __init__(self, model: PreTrainedModel, valid: Tensor, length: int) -> None:
        config = model.config.get_text_config()
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (len(valid), config.num_key_value_heads, length, dim)
        self.k, self.v = ([torch.empty(shape, dtype=model.dtype, device=valid.device)
                           for _ in range(config.num_hidden_layers)] for _ in range(2))
        self.valid = F.pad(valid, (0, length - valid.shape[1]), value=True)
        self.used = 0

    def keep(self, rows: Tensor) -> None:
        for tensors in (self.k, self.v):
            for layer in range(len(tensors)):
                tensors[layer] = tensors[layer][rows]
        self.valid = self.valid[rows]


def padded_attention(module, query: Tensor, key: Tensor, value: Tensor, attention_mask=None, *, scaling=None,
                     padded: _Cache | None = None, **options) -> tuple[Tensor, None]:
    """Attention of one layer; ``query [B, heads, T, head_dim]`` -> ``[B, T, heads, head_dim]``."""
    cache, layer = padded, module.layer_idx
    (batch, heads, new, dim), groups = query.shape, key.shape[1]
    seen = cache.used + new
    cache.k[layer][:, :, cache.used:seen], cache.v[layer][:, :, cache.used:seen] = key, value
    key, value = cache.k[layer][:, :, :seen], cache.v[layer][:, :, :seen]
    if new == 1:            # the heads that share keys are rows of one small product: nothing is repeated in memory
        out = F.scaled_dot_product_attention(query.view(batch, groups, heads // groups, dim), key, value,
                                             attn_mask=cache.valid[:, None, None, :seen], scale=scaling)
        return out.reshape(batch, 1, heads, dim), None
    # a padding row sees itself, because a row that sees nothing comes out as NaN
    own = torch.eye(new, dtype=torch.bool, device=query.device)
    mask = (cache.valid[:, None, :seen] & own.new_ones(new, new).tril()) | own
    key, value = (t.repeat_interleave(heads // groups, 1) for t in (key, value))
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None], scale=scaling)
    return out.transpose(1, 2), None


AttentionInterface.register(NAME, padded_attention)
AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)


@dataclass
class Decoded:
    """What followed one prompt of P tokens: ``answer``, n ids, and the ``states`` of all P + n tokens."""

    answer: list[int]
    states: States


class BatchDecoder:
    """Continues batches of prompts with ``model``, each row at its own temperature."""

    def __init__(self, model: PreTrainedModel, vocab_size: int, stop_ids: tuple[int, ...]) -> None:
        self.model = share_weights(model).eval()
        self.model.set_attn_implementation(NAME)
        pack_linears(self.model)
        self.vocab_size = vocab_size
        self.stop = torch.tensor(stop_ids, device=model.device)

    @torch.inference_mode()
    def __call__(self, prompts: list[list[int]], temperatures: list[float], max_new: int,
                 generator: torch.Generator) -> list[Decoded]:
        """The continuations, up to and including a stop id, at most ``max_new`` tokens each."""
        device = self.model.device
        width = max(map(len, prompts))
        tokens = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=device)
        valid = torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in prompts], device=device)
        position = (valid.cumsum(1) - 1).clamp(min=0)
        temperature = torch.tensor(temperatures, device=device)
        cache = _Cache(self.model, valid, width + max_new)
        out = torch.full((len(prompts), max_new), -1, dtype=torch.int64, device=device)
        size = self.model.get_output_embeddings().weight.shape[1]
        # a state for every column of the padded batch: the prompts' end at `width`, the answers begin there
        hidden = torch.zeros(len(prompts), width + max_new, size, dtype=torch.float16, device=device)
        log_z = torch.zeros(len(prompts), width + max_new, device=device)
        rows = torch.arange(len(prompts), device=device)            # which prompts the batch still holds
        for step in range(max_new):
            body = self.model.model(input_ids=tokens, position_ids=position, use_cache=False,
                                    padded=cache).last_hidden_state
            seen = slice(cache.used, cache.used + tokens.shape[1])
            cache.used = seen.stop
            hidden[rows, seen] = body.half()
            logits = self.model.lm_head(body[:, -1])[:, :self.vocab_size].float()
            log_z[rows, cache.used - 1] = logits.logsumexp(-1)
            tokens = _draw(logits, temperature, generator).unsqueeze(1)
            position = position[:, -1:] + 1
            out[rows, step] = tokens[:, 0]
            if step % 4 == 3:       # asking the device costs a wait
                done = torch.isin(out[rows], self.stop).any(1)
                left = int((~done).sum())
                if left == 0:
                    break
                if left <= .8 * len(rows):
                    rows, tokens, position, temperature = (t[~done] for t in (rows, tokens, position, temperature))
                    cache.keep(~done)
        decoded = []
        for row, (prompt, ids) in enumerate(zip(prompts, out.tolist())):
            answer = self._cut(ids)
            columns = slice(width - len(prompt), width + len(answer))
            decoded.append(Decoded(answer, States(hidden[row, columns].cpu(), log_z[row, columns].cpu())))
        return decoded

    def _cut(self, row: list[int]) -> list[int]:
        stops = set(self.stop.tolist())
        for i, token in enumerate(row):
            if token in stops:
                return row[:i + 1]
            if token < 0:
                return row[:i]
        return row


def _draw(logits: Tensor, temperature: Tensor, generator: torch.Generator) -> Tensor:
    """One token per row of ``logits [B, V]``: the argmax at temperature 0, else where a uniform falls in its sums.

    A uniform per row instead of noise per column: drawing the noise would take longer than the target's whole pass.
    """
    tokens = logits.argmax(-1)
    sampled = temperature > 0
    if sampled.any():
        sums = (logits[sampled] / temperature[sampled, None]).softmax(-1).cumsum(-1)
        uniform = torch.rand(len(sums), 1, generator=generator, device=logits.device)
        # sums end near 1, not at it, and searchsorted may then point behind the last token
        tokens[sampled] = torch.searchsorted(sums, uniform * sums[:, -1:]).clamp(max=logits.shape[1] - 1)[:, 0]
    return tokens
