"""A Hugging Face causal LM over flattened ragged batches."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spin_core.decompose.strategies import Attention
from spin_core.runtime.attention import Ragged, attach, refuse
from spin_core.runtime.batch import RaggedBatch
from spin_core.runtime.block import fuse_layers
from spin_core.runtime.cache import SlotCache
from spin_core.runtime.compact import compact
from spin_core.runtime.linear import pack_linears
from spin_core.runtime.ring import RingAttention, RingCache, Window
from spin_core.runtime.tensor_parallel import local_heads

LAST = -1       # among layers: what the head reads, behind the last norm


class ModelRunner:
    """Runs ``model`` on a :class:`SlotCache` of its own.

    The runner works on a second module tree that shares every weight with ``model``, so the caller's model stays
    as the library made it, and one model can have several runners.

    ``vocab_size`` cuts logits that stand for no token (a head padded to a round width). With ``keep_states`` the
    runner keeps ``states [slots, max_len, width]``, written like the cache: entries of committed tokens are right, the
    others stale. The first ``hidden`` columns are what the head read at every token; behind them stand the inputs of
    the layers ``keep_layers``, of which ``num_layers`` is the last norm (:meth:`columns`). ``verification`` names how a
    ragged batch is attended (:func:`spin_core.decompose.plan`). With a ``window`` every token sees only a part of its
    past, and the cache is a ring that holds no more (:mod:`spin_core.runtime.ring`).

    Raises NotImplementedError, at once, for a model that cannot run like this: attention of its own beside the
    library's registry, recurrent layers, or a variant that the adapter does not know.
    """

    def __init__(self, model: PreTrainedModel, slots: int, max_len: int, vocab_size: int | None = None,
                 keep_states: bool = False, verification: str = "auto", window: Window | None = None,
                 keep_layers: tuple[int, ...] = ()) -> None:
        self.model = share_weights(model).eval()
        attach(self.model)
        fuse_layers(self.model)
        pack_linears(self.model)
        config = model.config.get_text_config()
        heads = getattr(config, "num_attention_heads", None)
        if not heads:
            raise NotImplementedError(f"{type(model).__name__} has no attention heads, so there is nothing to cache")
        self.num_layers = config.num_hidden_layers
        kv_heads = local_heads(model, getattr(config, "num_key_value_heads", None) or heads)
        shape = (self.num_layers, slots, kv_heads, max_len,
                 getattr(config, "head_dim", None) or config.hidden_size // heads, model.dtype, model.device)
        self.window = window
        self.cache = SlotCache(*shape) if window is None else RingCache(window, *shape)
        self.attention = RingAttention(self.cache) if window else Attention(verification, local_heads(model, heads),
                                                                            self.cache)
        self.vocab_size = vocab_size
        self.device = model.device
        self.graphs = None          # see spin_core.pipeline.graphs
        self.states: Tensor | None = None
        if keep_states:
            self.width, self.keep_layers, self._inputs = config.hidden_size, keep_layers, {}
            self.states = torch.zeros(slots, max_len, self.width * (1 + len(keep_layers)), dtype=model.dtype,
                                      device=model.device)
            body = self.model.base_model
            body.register_forward_hook(self._keep_states, with_kwargs=True)
            for layer in keep_layers:
                part = body.layers[layer] if layer < self.num_layers else body.norm
                part.register_forward_pre_hook(partial(self._keep_input, layer))
        self._try_out()

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
        step = self.attention.step(batch)
        ragged = Ragged(batch, step if self.window else self.cache, step)
        logits = self.model(input_ids=tokens[None], position_ids=batch.positions[None], use_cache=False,
                            logits_to_keep=torch.tensor(rows, dtype=torch.int64, device=self.device),
                            ragged=ragged, **inputs).logits[0]
        if len(ragged.layers) < self.num_layers:    # the others saw one long sequence, across all requests
            raise NotImplementedError(f"only {len(ragged.layers)} of {self.num_layers} layers attend through the "
                                      "library's registry")
        for slot, count in zip(slots, counts):
            self.cache.lengths[slot] += count
        return logits[:, :self.vocab_size]

    def keep(self, slots: list[int], bases: list[int], paths: list[list[int]]) -> None:
        """Of the trees read last, behind ``bases[b]`` tokens of each slot, let the nodes ``paths[b]`` be the text."""
        compact(self.cache, slots, bases, paths, self.states)

    def columns(self, layers: tuple[int, ...]) -> slice | list[int]:
        """The columns of ``states`` that hold the inputs of ``layers``, side by side; LAST stands for the last state."""
        places = [0 if layer == LAST else 1 + self.keep_layers.index(layer) for layer in layers]
        if places == list(range(places[0], places[0] + len(places))):       # a slice is read without a copy
            return slice(places[0] * self.width, (places[-1] + 1) * self.width)
        return [column for place in places for column in range(place * self.width, (place + 1) * self.width)]

    def _keep_input(self, layer: int, module, args) -> None:
        self._inputs[layer] = args[0]

    def _keep_states(self, body, args, kwargs, output) -> None:
        batch = kwargs["ragged"].batch
        # a drafter says itself what it wants to read of its past
        kept = self.model.carried(output) if hasattr(self.model, "carried") else output.last_hidden_state
        if self.keep_layers:
            kept = torch.cat([kept, *(self._inputs.pop(layer) for layer in self.keep_layers)], -1)
        self.states[batch.slot_of, batch.entry_of] = kept[0]

    def _try_out(self) -> None:
        """Read a token, so that a model which cannot be served is refused here and not in mid-service."""
        try:
            self.forward([0], [1], [0], [0])
            refuse(self.model)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise NotImplementedError(f"{type(self.model).__name__} cannot run on ragged batches: {error}") from error
        self.cache.truncate(0, 0)


def share_weights(model: PreTrainedModel) -> PreTrainedModel:
    """A deep copy of the modules whose parameters and buffers are the originals."""
    tensors = list(model.parameters()) + list(model.buffers())
    return copy.deepcopy(model, memo={id(t): t for t in tensors})
