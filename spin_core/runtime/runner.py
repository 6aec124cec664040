"""A Hugging Face causal LM over flattened ragged batches."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spin_core.decompose.strategies import Attention, check_name
from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache
from spin_core.kv.compact import compact
from spin_core.kv.ring import RingAttention, RingCache, Window
from spin_core.runtime.attention import Ragged, attach, serving
from spin_core.runtime.block import fuse_layers
from spin_core.runtime.check import LENGTH, TOLERANCE, difference, own_logits
from spin_core.runtime.layers import LayerNeeds, refuse_positions, survey
from spin_core.runtime.library import LibraryPasses
from spin_core.runtime.linear import pack_linears
from spin_core.runtime.tensor_parallel import local_heads, parts_of


class ModelRunner:
    """Runs ``model`` on a :class:`SlotCache` of its own.

    The runner works on a second module tree that shares every weight with ``model``, so the caller's model stays
    as the library made it, and one model can have several runners.

    ``vocab_size`` cuts logits that stand for no token (a head padded to a round width). With ``keep_states`` the
    runner keeps ``states [slots, max_len, hidden]``, what the head read at every token, written like the cache: entries
    of committed tokens are right, the others stale. ``verification`` names how a ragged batch is attended
    (:func:`spin_core.decompose.plan`). With a ``window`` every token sees only a part of its past, and the cache
    is a ring that holds no more (:mod:`spin_core.kv.ring`).

    A model that does not attend through the library's registry, or in a way that ours does not know, runs through the
    library's own code, one request at a time (:mod:`spin_core.runtime.library`), with a warning: exact, and slow.
    ``check``: compare a short text with the library's own logits before anything is served.

    Raises NotImplementedError, at once, for a model that cannot run in either way (recurrent layers), or whose logits
    differ from the library's by more than rounding.
    """

    def __init__(self, model: PreTrainedModel, slots: int, max_len: int, vocab_size: int | None = None,
                 keep_states: bool = False, verification: str = "auto", window: Window | None = None,
                 check: bool = True) -> None:
        self.window, self.vocab_size, self.device = window, vocab_size, model.device
        self.graphs = None          # see spin_core.runtime.graphs
        self.library: LibraryPasses | None = None
        self.states: Tensor | None = None
        name, config = type(model).__name__, model.config.get_text_config()
        check_name(verification)
        for heads in ("num_attention_heads", "num_key_value_heads") if parts_of(model) > 1 else ():
            local_heads(model, getattr(config, heads, None) or config.num_attention_heads)
        # spin_core's own drafters are no architecture of the library's: there is nothing to compare them with
        self.own = check and not type(model).__module__.startswith("spin_core")
        try:
            self._attend_ragged(model, slots, max_len, verification)
            if keep_states:
                self.states = torch.zeros(slots, max_len, config.hidden_size, dtype=model.dtype, device=model.device)
                self.model.base_model.register_forward_hook(self._keep_states, with_kwargs=True)
            self._try_out(model)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if window or keep_states:
                raise NotImplementedError(f"{name} cannot run on ragged batches: {error}") from error
            reason = str(error)
            try:
                self._attend_by_library(model, slots, max_len)
                self._try_out(model)
            except torch.OutOfMemoryError:
                raise
            except Exception as second:
                raise NotImplementedError(f"{name} cannot be served: {second}" + (
                    f" (on ragged batches: {reason})" if reason != str(second) else "")) from second
            warnings.warn(f"{name} runs through the library's own code, one request at a time, which is slow: {reason}",
                          RuntimeWarning, stacklevel=2)

    def _attend_ragged(self, model: PreTrainedModel, slots: int, max_len: int, verification: str) -> None:
        self.model = share_weights(model).eval()
        self.needs = survey(self.model, max_len)
        layers = getattr(model.config.get_text_config(), "num_hidden_layers", 0)
        if len(self.needs) < layers:            # the others would see one long sequence, across all requests
            raise NotImplementedError(f"only {len(self.needs)} of {layers} layers attend through the library's registry")
        if sorted(self.needs) != list(range(len(self.needs))):
            raise NotImplementedError(f"its attention layers are numbered {sorted(self.needs)}")
        attach(self.model)
        fuse_layers(self.model)
        pack_linears(self.model)
        like = next((i for i in sorted(self.needs, key=lambda i: (self.needs[i].sight is not None, i))
                     if self.needs[i].alike(self.needs[i])), 0)
        base = self.needs[like]
        self.odd = {i: needs for i, needs in self.needs.items() if needs.sight or not needs.alike(base)}
        shape = (len(self.needs), slots, base.kv_heads, max_len, base.key_dim, model.dtype, model.device)
        if self.window:
            if self.odd:
                raise NotImplementedError(f"layer {min(self.odd)} has a window, a cap, sinks or widths of its own, which "
                                          "a sparse cache does not serve")
            self.cache = RingCache(self.window, *shape)
            self.attention = RingAttention(self.cache)
        else:
            self.cache = SlotCache(*shape, shapes=[self.needs[i].shape for i in range(len(self.needs))])
            self.attention = Attention(verification, base.heads, self.cache, like)

    def _attend_by_library(self, model: PreTrainedModel, slots: int, max_len: int) -> None:
        refuse_positions(model)
        self.model = share_weights(model).eval()
        shapes = own_logits(model, min(LENGTH, max_len))[2]
        if not shapes:
            raise NotImplementedError("it keeps no keys and values of its past")
        self.needs = {i: LayerNeeds(kv, kv, key, value) for i, (kv, key, value) in enumerate(shapes)}
        self.odd = self.needs
        self.cache = SlotCache(len(shapes), slots, 0, max_len, 0, model.dtype, model.device, shapes)
        self.library = LibraryPasses(self.model, self.cache)

    @property
    def num_layers(self) -> int:
        """How many layers keep keys and values."""
        return len(self.needs)

    @property
    def plain(self) -> bool:
        """Whether every layer attends to all of its past, in one shape, and nothing more."""
        return self.window is None and self.library is None and not self.odd

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
        batch = RaggedBatch.build(tokens, slots, counts, [self.cache.lengths[s] for s in slots], ancestors)
        logits = self.library.logits(batch, rows) if self.library else self._ragged_logits(batch, rows, inputs)
        for slot, count in zip(slots, counts):
            self.cache.lengths[slot] += count
        return logits[:, :self.vocab_size]

    def _ragged_logits(self, batch: RaggedBatch, rows: list[int], inputs: dict) -> Tensor:
        step = self.attention.step(batch)
        longest = max((p + c for p, c in zip(batch.prefix, batch.counts)), default=0)
        special = {i: needs for i, needs in self.odd.items()        # a window that holds all is none
                   if needs.sight is None or longest > needs.sight.size or not needs.alike(self.needs[self.attention.like])}
        ragged = Ragged(batch, step if self.window else self.cache, step, special)
        with serving(ragged):
            logits = self.model(input_ids=batch.tokens[None], position_ids=batch.positions[None], use_cache=False,
                                logits_to_keep=torch.tensor(rows, dtype=torch.int64, device=self.device),
                                ragged=ragged, **inputs).logits[0]
        if len(ragged.layers) < self.num_layers:    # the others saw one long sequence, across all requests
            raise NotImplementedError(f"only {len(ragged.layers)} of {self.num_layers} layers attend through the "
                                      "library's registry")
        return logits

    def keep(self, slots: list[int], bases: list[int], paths: list[list[int]]) -> None:
        """Of the trees read last, behind ``bases[b]`` tokens of each slot, let the nodes ``paths[b]`` be the text."""
        compact(self.cache, slots, bases, paths, self.states)

    def _keep_states(self, body, args, kwargs, output) -> None:
        batch = kwargs["ragged"].batch
        # a drafter says itself what it wants to read of its past
        kept = self.model.carried(output) if hasattr(self.model, "carried") else output.last_hidden_state
        self.states[batch.slot_of, batch.entry_of] = kept[0]

    def _try_out(self, model: PreTrainedModel) -> None:
        """Read a short text, so that a model which cannot be served is refused here and not in mid-service."""
        length = min(LENGTH, self.cache.max_len)
        if not self.own or self.window or length < LENGTH:
            self.forward([0], [1], [0], [0])
        else:
            tokens, expected, _ = own_logits(share_weights(model).eval())
            worst = difference(lambda new, rows, tree: self.forward([0], [len(new)], new, rows, None if tree is None else [tree]),
                               lambda count: self.cache.truncate(0, count), tokens, expected)
            if not worst <= TOLERANCE.get(expected.dtype, 1e-1):
                raise NotImplementedError(f"its logits differ from the library's by {worst:.1e} of the largest, which is "
                                          "more than rounding")
        self.cache.truncate(0, 0)


def share_weights(model: PreTrainedModel) -> PreTrainedModel:
    """A deep copy of the modules whose parameters and buffers are the originals."""
    tensors = list(model.parameters()) + list(model.buffers())
    return copy.deepcopy(model, memo={id(t): t for t in tensors})
