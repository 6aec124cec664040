"""A Hugging Face causal LM over flattened ragged batches."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spin_core.kv.batch import RaggedBatch
from spin_core.kv.compact import compact
from spin_core.kv.ring import Window
from spin_core.runtime.linear import round_products
from spin_core.runtime.loading import DRAFT, prepare, record_states


class ModelRunner:
    """Runs ``model`` on a :class:`SlotCache` of its own.

    It works on a second module tree that shares every weight: the caller's model stays as it is and can have several
    runners. A model whose attention ours cannot replace runs through the library's own code, one request at a time
    (:mod:`spin_core.runtime.library`), with a warning: exact, and slow.

    ``vocab_size`` cuts logits that stand for no token (a head padded to a round width). ``keep_states``: keep the
    model's ``states [slots, max_len, width]`` at every token, with the inputs of those layers that it numbers
    (:func:`spin_core.runtime.loading.record_states`). ``verification``: how a ragged batch is attended
    (:func:`spin_core.decompose.plan`). ``window``: every token sees only a part of its past, and the cache is a ring
    that holds no more (:mod:`spin_core.kv.ring`). ``check``: compare a short text with the library's own logits first,
    in each way that "auto" chooses from. ``chunk``: layers with a window keep window + chunk + 64 tokens
    (:class:`SlotCache`), and read chunk + 64 of a request at once; a longer chain is read in parts. ``bf16``: products
    of an fp32 model on a CPU are rounded to bf16 (:mod:`spin_core.runtime.linear`), after the check.

    Raises NotImplementedError for a model that cannot run in either way (recurrent layers), or whose logits differ from
    the library's by more than rounding.
    """

    def __init__(self, model: PreTrainedModel, slots: int, max_len: int, vocab_size: int | None = None,
                 keep_states: bool | tuple[int, ...] = False, verification: str = "auto",
                 window: Window | None = None, check: bool = True, chunk: int = 512, bf16: bool | None = None) -> None:
        self.window, self.vocab_size, self.device, self.check = window, vocab_size, model.device, check
        self.bf16 = bf16
        self.graphs = None          # see spin_core.runtime.graphs
        self.states: Tensor | None = None
        ready = prepare(model, slots, max_len, verification, window, keep_states, check, chunk)
        self.ready, self.model, self.cache = ready, ready.model, ready.cache
        if bf16:
            round_products(self.model)
        if keep_states:
            self.keep_layers = () if keep_states is True else tuple(layer for layer in keep_states if layer >= 0)
            self.states = record_states(self.model, slots, max_len, self.keep_layers)

    @property
    def attention(self):
        """What plans and attends the plain layers of a pass; another one with a ``step(batch)`` may take its place."""
        return self.ready.attentions.get(self.ready.base)

    @attention.setter
    def attention(self, attention) -> None:
        self.ready.attentions[self.ready.base] = attention

    @property
    def longest_draft(self) -> int:
        """How many drafted tokens of a request it can read behind a chunk of the prompt, and take back."""
        return DRAFT if self.cache.most else self.cache.max_len

    @property
    def plain(self) -> bool:
        """Whether every layer attends to all of its past, in one shape, and nothing more."""
        return self.window is None and self.ready.library is None and not self.ready.odd

    @torch.inference_mode()
    def forward(self, slots: list[int], counts: list[int], tokens: Tensor | list[int], rows: list[int],
                ancestors: list[Tensor | None] | None = None, graphs: bool = True, **inputs) -> Tensor:
        """Feed ``counts[b]`` new tokens to each slot; return the logits of the flattened ``rows``, ``[R, V]``.

        ``tokens [N]`` are concatenated in the order of ``slots``. The cache then holds them all; undo with
        ``cache.truncate``. ``inputs`` are what this model reads besides tokens. ``graphs`` False: in no case by a CUDA
        graph, for a pass that may run beside others of this runner. Raises ValueError when a slot has no room, before
        anything is written.
        """
        for slot, count in zip(slots, counts):
            self.cache.check_room(slot, count)
        if graphs and self.graphs and ancestors is None:
            logits = self.graphs.forward(slots, counts, tokens, rows, **inputs)
            if logits is not None:
                return logits
        tokens = torch.as_tensor(tokens, dtype=torch.int64, device=self.device)
        if self.cache.most and max(counts, default=0) > self.cache.most and ancestors is None and not inputs:
            return self._in_parts(slots, counts, tokens, rows)
        batch = RaggedBatch.build(tokens, slots, counts, [self.cache.lengths[s] for s in slots], ancestors)
        logits = self.ready.logits(batch, rows, **inputs)
        for slot, count in zip(slots, counts):
            self.cache.lengths[slot] += count
        return logits[:, :self.vocab_size]

    def keep(self, slots: list[int], bases: list[int], paths: list[list[int]]) -> None:
        """Of the trees read last, behind ``bases[b]`` tokens of each slot, let the nodes ``paths[b]`` be the text."""
        compact(self.cache, slots, bases, paths, self.states)

    def _in_parts(self, slots: list[int], counts: list[int], tokens: Tensor, rows: list[int]) -> Tensor:
        """:meth:`forward` of chains with more tokens than their rings take at once, as several passes."""
        texts, found, most = tokens.split(counts), {}, self.cache.most
        starts = torch.tensor([0, *counts]).cumsum(0).tolist()
        for begin in range(0, max(counts), most):
            parts = [(b, text[begin:begin + most]) for b, text in enumerate(texts) if len(text) > begin]
            numbers = [starts[b] + begin + i for b, part in parts for i in range(len(part))]
            wanted = [i for i, number in enumerate(numbers) if number in rows]
            # not self.forward, which for a shared target would tell the other ranks of each part
            logits = ModelRunner.forward(self, [slots[b] for b, _ in parts], [len(part) for _, part in parts],
                                         torch.cat([part for _, part in parts]), wanted)
            found |= {numbers[i]: row for i, row in zip(wanted, logits)}
        return torch.stack([found[row] for row in rows]) if rows else logits[:0]
