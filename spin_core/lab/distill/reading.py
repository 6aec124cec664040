"""What the target says of a text, for training heads: the states they read and the distributions they learn.

Reading takes the target a pass over every token, which costs more than training a small head on it. So what was read
stays in a file, a ring of fixed size: while it lasts, a text that comes again costs nothing.
"""

import json
import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from spin_core.files import save_json
from spin_core.lab.distill import fused, loss

ROWS = 256          # of a vocabulary's logits at once: they stay in the processor's cache
TEXTS = 16          # read at once
ALIKE = 16          # lengths are rounded up to multiples of this


class Reader:
    """The target in HALF. ``layers``: those whose inputs are kept. ``compiled``: worth it for more than some
    minutes."""

    def __init__(self, model: PreTrainedModel, vocab_size: int, layers: tuple[int, ...], compiled: bool = True) -> None:
        config, weights = model.config, {name: w.detach().to(fused.HALF) for name, w in model.state_dict().items()}
        self.layers, self.vocab_size, self.compiled = layers, vocab_size, compiled
        self.hidden, self.eps = config.hidden_size, config.rms_norm_eps
        self.embedding = weights["model.embed_tokens.weight"]
        self.head = model.get_output_embeddings().weight.detach().to(fused.HALF)
        self.weights = fused.tree({name.removeprefix("model."): w for name, w in weights.items()
                                   if name.startswith("model.layers.")})["layers"]
        self.norm = weights["model.norm.weight"]
        self.rotary = model.model.rotary_emb
        self.layer, self.log_normaliser, self.probabilities = (
            torch.compile(each) if compiled else each
            for each in (fused.target_layer, loss.log_normaliser, loss.probabilities))

    def angles(self, length: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``[1, length, dim / 2]`` of the rotary embedding."""
        position = torch.arange(length, device=self.embedding.device)[None]
        parts = self.rotary(self.embedding[:1].float(), position)
        return tuple(part[..., :part.shape[-1] // 2].float() for part in parts)

    @torch.no_grad()
    def states(self, tokens: Tensor) -> Tensor:
        """``tokens [B, T]`` -> ``[B, T, (layers + 1) * hidden]``: the inputs of the layers, then what the head
        reads."""
        x, (cos, sin), kept = self.embedding[tokens], self.angles(tokens.shape[1]), {}
        for number, weights in enumerate(self.weights):
            kept[number] = x if number in self.layers else None
            for part in (x, cos, sin) if self.compiled else ():
                torch._dynamo.mark_dynamic(part, 1)
            x = self.layer(x, weights, cos, sin, self.eps)
        kept[len(self.weights)] = x
        return torch.cat([*(kept[layer] for layer in self.layers), fused.norm(x, self.norm, self.eps)], -1)

    @torch.no_grad()
    def log_z(self, hidden: Tensor) -> Tensor:
        """The log of the normaliser over the whole vocabulary, ``[N]`` for ``hidden [N, hidden]``."""
        rows = -(-len(hidden) // 64) * 64
        padded = torch.cat([hidden, hidden[:1].expand(rows - len(hidden), -1)])
        return torch.cat([self.log_normaliser((part @ self.head.T)[:, :self.vocab_size])
                          for part in padded.split(64)])[:len(hidden)]

    @torch.no_grad()
    def p(self, hidden: Tensor, log_z: Tensor, head: Tensor) -> Tensor:
        """p on the draft vocabulary whose rows of the head are ``head [Vd, hidden]``: ``[N, Vd]``; N is a multiple of
        ROWS."""
        parts = zip(hidden.split(ROWS), log_z.split(ROWS))
        return torch.cat([self.probabilities(part @ head.T, z) for part, z in parts])


@dataclass
class Text:
    """A training text: ``tokens [T]``, of which the first ``prompt`` are its prompt; its ``kind``; ``key`` names it."""

    key: str
    tokens: Tensor
    prompt: int
    kind: str

    @property
    def answer(self) -> int:
        return len(self.tokens) - self.prompt


class Store:
    """A ring of rows on disk: a text's states ``[T, width]`` bf16 and its ``log_z [T]``.

    Its index is written by :meth:`save` alone. Texts whose rows were overwritten since then are told by their first row
    and forgotten.
    """

    def __init__(self, path: Path, width: int, rows: int) -> None:
        self.path, self.rows, self.at = path, rows, 0
        self.where: OrderedDict[str, list[int]] = OrderedDict()     # key -> first row, rows, sum; the oldest first
        parts = (path, np.int16, (rows, width)), (path.with_suffix(".log_z"), np.float32, (rows,))
        known = all(name.exists() and name.stat().st_size == np.dtype(kind).itemsize * np.prod(shape, dtype=int)
                    for name, kind, shape in parts)
        for name, kind, shape in parts if not known else ():
            _reserve(name, int(np.dtype(kind).itemsize * np.prod(shape, dtype=int)))
        self.states, self.log_z = (np.memmap(name, kind, "r+", shape=shape) for name, kind, shape in parts)
        index = path.with_suffix(".json")
        if known and index.exists():
            saved = json.loads(index.read_text())
            self.at = saved["at"]
            self.where = OrderedDict((key, place) for key, place in saved["where"].items()
                                     if self._sum(place[0]) == place[2])

    def __contains__(self, key: str) -> bool:
        return key in self.where

    def put(self, key: str, states: Tensor, log_z: Tensor) -> None:
        count = len(states)
        if self.at + count > self.rows:
            self.at = 0
        first, end = self.at, self.at + count
        while self.where:                   # the oldest come next in the ring
            oldest = next(iter(self.where))
            start, length, _ = self.where[oldest]
            if start >= end or start + length <= first:
                break
            del self.where[oldest]
        self.states[first:end] = states.cpu().bfloat16().view(torch.int16).numpy()
        self.log_z[first:end] = log_z.cpu().numpy()
        self.where[key], self.at = [first, count, self._sum(first)], end

    def get(self, key: str) -> tuple[Tensor, Tensor]:
        first, count, _ = self.where[key]
        return (torch.from_numpy(self.states[first:first + count].copy()).view(torch.bfloat16).to(fused.HALF),
                torch.from_numpy(self.log_z[first:first + count].copy()))

    def save(self) -> None:
        save_json(self.path.with_suffix(".json"), {"at": self.at, "where": self.where})

    def _sum(self, row: int) -> int:
        return int(self.states[row].sum(dtype=np.int64))


def _reserve(path: Path, size: int) -> None:
    """Make a file of ``size`` bytes with room for each: where the disk is full only when a mapped file is written to,
    the system ends the process. Raises OSError, naming ``path``."""
    try:
        with open(path, "wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OSError(f"cannot write {path}, of {size / 1e9:.3g} GB: {error}") from error


def fill(store: Store, reader: Reader, texts: list[Text]) -> int:
    """Read the texts that the store lacks, those of similar length together; how many tokens were read."""
    new = sorted({t.key: t for t in texts if t.key not in store}.values(), key=lambda t: len(t.tokens))
    for first in range(0, len(new), TEXTS):
        part = new[first:first + TEXTS]
        width = -(-max(len(t.tokens) for t in part) // ALIKE) * ALIKE
        tokens = torch.zeros(TEXTS, width, dtype=torch.int64, device=reader.head.device)
        for row, text in enumerate(part):
            tokens[row, :len(text.tokens)] = text.tokens
        states = reader.states(tokens)
        hidden = torch.cat([states[row, t.prompt - 1:len(t.tokens), -reader.hidden:] for row, t in enumerate(part)])
        log_z = reader.log_z(hidden).split([t.answer + 1 for t in part])
        for row, (text, z) in enumerate(zip(part, log_z)):
            whole = torch.zeros(len(text.tokens))
            whole[text.prompt - 1:] = z
            store.put(text.key, states[row, :len(text.tokens)], whole)
    return sum(len(t.tokens) for t in new)
