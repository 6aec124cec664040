"""Plain decoding of many prompts at once, for making training data: nothing speculative, as many rows as pay.

The serving engine attends request by request, which is right for a few; here hundreds of rows share every product.
Prompts of similar length are decoded together, so that little is padded.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from spin_core.lab.distill import fused
from spin_core.lab.distill.reading import Reader

ROWS, CELLS = 256, 80_000       # decoded at once: rows, and entries of the cache
BLOCK = 1600                    # tokens of prompts that are read at once


class BatchDecoder:
    """Continues batches of prompts with ``model`` in fused.HALF, each row at its own temperature."""

    def __init__(self, model: PreTrainedModel, vocab_size: int, stop_ids: tuple[int, ...]) -> None:
        self.reader = Reader(model, vocab_size, (), compiled=False)
        self.heads, self.dim = model.config.num_key_value_heads, 2 * self.reader.angles(1)[0].shape[-1]
        self.vocab_size, self.stops = vocab_size, set(stop_ids)

    @torch.inference_mode()
    def __call__(self, prompts: list[list[int]], temperatures: list[float], max_new: int,
                 generator: torch.Generator) -> list[list[int]]:
        """The continuations, up to and including a stop id, at most ``max_new`` tokens each."""
        order, answers = sorted(range(len(prompts)), key=lambda i: len(prompts[i])), {}
        while order:
            count = min(ROWS, max(1, CELLS // (len(prompts[order[min(ROWS, len(order)) - 1]]) + max_new)))
            rows, order = order[:count], order[count:]
            answers |= zip(rows, self._decode([prompts[i] for i in rows], [temperatures[i] for i in rows], max_new,
                                              generator))
        return [answers[i] for i in range(len(prompts))]

    def _decode(self, prompts: list[list[int]], temperatures: list[float], max_new: int,
                generator: torch.Generator) -> list[list[int]]:
        """The same for prompts in the order of their lengths, all at once."""
        device, length = self.reader.head.device, len(prompts[-1]) + max_new
        shape = len(self.reader.weights), 2, len(prompts), self.heads, length, self.dim
        cache = torch.zeros(shape, dtype=fused.HALF, device=device)
        position = torch.tensor([len(p) for p in prompts], device=device)
        x = self._read(prompts, cache)
        angles, place = self.reader.angles(length), torch.arange(length, device=device)
        temperature, answers = torch.tensor(temperatures, device=device), [[] for _ in prompts]
        rows = torch.arange(len(prompts), device=device)        # those that the cache still holds
        for step in range(max_new):
            logits = F.linear(fused.norm(x, self.reader.norm, self.reader.eps), self.reader.head)
            tokens = _draw(logits[:, :self.vocab_size].float(), temperature, generator)
            for row, token in zip(rows.tolist(), tokens.tolist()):
                if not answers[row] or answers[row][-1] not in self.stops:
                    answers[row].append(token)
            unfinished = torch.tensor([answers[row][-1] not in self.stops for row in rows.tolist()], device=device)
            if step == max_new - 1 or not unfinished.any():
                break
            if int(unfinished.sum()) <= .8 * len(rows):         # moving the cache costs a step
                cache = cache[:, :, unfinished]
                rows, tokens, position, temperature = (t[unfinished] for t in (rows, tokens, position, temperature))
            end = int(position.max()) + 1
            seen, at = (place[:end] <= position[:, None])[:, None, None], torch.arange(len(rows), device=device)

            def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                kept = cache[layer]
                kept[0, at, :, position], kept[1, at, :, position] = key[:, 0], value[:, 0]
                # the heads that share keys are rows of one small product: nothing is repeated in memory
                query = query[:, 0].unflatten(1, (self.heads, -1))
                return F.scaled_dot_product_attention(query, kept[0, :, :, :end], kept[1, :, :, :end],
                                                      attn_mask=seen).flatten(1)[:, None]

            x = self._layers(tokens[:, None], [part[0][position][:, None] for part in angles], attend)[:, 0]
            position = position + 1
        return answers

    def _read(self, prompts: list[list[int]], cache: Tensor) -> Tensor:
        """Read the prompts into ``cache``; the states of their last tokens ``[B, hidden]``. Padding stands at the right
        end, where causal attention does not see it, and answers overwrite it."""
        lasts, first = [], 0
        while first < len(prompts):
            count = max(1, BLOCK // len(prompts[min(first + 15, len(prompts) - 1)]))
            block = prompts[first:first + count]
            rows, width = slice(first, first + len(block)), len(block[-1])
            tokens = torch.tensor([p + [0] * (width - len(p)) for p in block], device=cache.device)

            def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                cache[layer, 0, rows, :, :width], cache[layer, 1, rows, :, :width] = (
                    part.transpose(1, 2) for part in (key, value))
                return fused.causal(query, key, value)

            x = self._layers(tokens, self.reader.angles(width), attend)
            lasts.append(x[torch.arange(len(block)), [len(p) - 1 for p in block]])
            first += len(block)
        return torch.cat(lasts)

    def _layers(self, tokens: Tensor, angles, attend) -> Tensor:
        """``tokens [B, T]`` through all layers ``[B, T, hidden]``; ``attend(layer, query, key, value)``."""
        x = self.reader.embedding[tokens]
        for number, layer in enumerate(self.reader.weights):
            x = fused.target_layer(x, layer, *angles, self.reader.eps, lambda *parts, n=number: attend(n, *parts))
        return x


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
