"""Making a model ready to be served: on ragged batches if it can, else through the library's own code, else not."""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spin_core.decompose.needs import LayerNeeds
from spin_core.decompose.steps import check_name
from spin_core.decompose.strategies import Attention
from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache
from spin_core.kv.ring import RingCache, Window
from spin_core.runtime.attention import Ragged, attach, current, serving
from spin_core.runtime.block import fuse_layers
from spin_core.runtime.check import (LENGTH, TOLERANCE, WIDTH, Contradiction, difference, own_logits, refuse_forgetful,
                                     refuse_parts)
from spin_core.runtime.layers import refuse_positions, survey
from spin_core.runtime.library import LibraryPasses
from spin_core.runtime.linear import pack_linears
from spin_core.runtime.ranks import check_heads, parts_of

DRAFT = 64          # drafted tokens of a request that rings can take beside a chunk of its prompt


@dataclass
class Prepared:
    """A second module tree that shares every weight with the caller's model, and the cache for it.

    ``needs`` of every attention layer; ``odd``, of those that differ from plain attention in the shape of layer
    ``like``. ``attentions`` by :meth:`shape`. ``library``, if the passes are the library's own.
    """

    model: PreTrainedModel
    cache: SlotCache
    needs: dict[int, LayerNeeds]
    odd: dict[int, LayerNeeds]
    attentions: dict[tuple, Attention | RingCache] = field(default_factory=dict)
    library: LibraryPasses | None = None
    like: int = 0

    def shape(self, layer: int) -> tuple:
        """Layers with the same have a step in common: heads, kv heads, entries of a slot, widths of key and value."""
        return self.needs[layer].heads, *self.cache.k[layer].shape[1:], self.cache.v[layer].shape[3]

    @property
    def base(self) -> tuple:
        """The shape of the plain layers."""
        return self.shape(self.like)

    def logits(self, batch: RaggedBatch, rows: list[int], **inputs) -> Tensor:
        """One pass: the batch's keys and values are in the cache then. The logits of the flattened ``rows [R, V]``."""
        if self.library:
            return self.library.logits(batch, rows)
        self.cache.begin(batch.slots, batch.seen, [p + c for p, c in zip(batch.prefix, batch.counts)])
        plain = self.attentions[self.base].step(batch) if len(self.odd) < len(self.needs) else None
        longest = max((p + c for p, c in zip(batch.prefix, batch.counts)), default=0)
        steps, special = {(*self.base, None): plain} if plain else {}, {}
        for layer, needs in self.odd.items():       # a window that holds all the text is none
            sight = needs.sight if needs.sight and needs.sight.size < longest else None
            key = *self.shape(layer), sight
            if key not in steps:
                steps[key] = self.attentions[key[:-1]].step(batch, sight)
            special[layer] = steps[key], needs
        ragged = Ragged(batch, plain if isinstance(self.cache, RingCache) else self.cache, plain, special)
        with serving(ragged):
            keep = torch.tensor(rows, dtype=torch.int64, device=batch.tokens.device)
            logits = self.model(input_ids=batch.tokens[None], position_ids=batch.positions[None], use_cache=False,
                                logits_to_keep=keep, **inputs).logits[0]
        if len(ragged.layers) < len(self.needs):    # the others saw one long sequence, across all requests
            raise NotImplementedError(f"only {len(ragged.layers)} of {len(self.needs)} layers attend through the "
                                      "library's registry")
        return logits


def prepare(model: PreTrainedModel, slots: int, max_len: int, verification: str, window: Window | None,
            keep_states: bool, check: bool, chunk: int) -> Prepared:
    """Make ``model`` ready, in the fastest way that gives its own logits. The arguments are ModelRunner's.

    Raises NotImplementedError where there is none, ValueError for an unknown strategy or heads that do not divide.
    """
    name, config = type(model).__name__, model.config.get_text_config()
    check_name(verification)
    for heads in ("num_attention_heads", "num_key_value_heads") if parts_of(model) > 1 else ():
        check_heads(model, getattr(config, heads, None) or config.num_attention_heads)
    # spin_core's own drafters are no architecture of the library's: there is nothing to compare them with
    check = check and window is None and not type(model).__module__.startswith("spin_core")
    try:
        ready = _on_ragged_batches(model, slots, max_len, verification, window, chunk)
        if check:
            refuse_forgetful(model, {i: needs.sight and needs.sight.size for i, needs in ready.needs.items()},
                             max_len)
        return _tried(ready, model, check)
    except torch.OutOfMemoryError:
        raise
    except Contradiction as error:
        raise NotImplementedError(f"{name} cannot be served: {error}") from error
    except Exception as error:
        if window or keep_states:
            what = "a sparse cache" if window else "a drafter that reads the target's states"
            raise NotImplementedError(f"{name} cannot run on ragged batches, which {what} needs: {error}") from error
        reason = _cause(error)
    try:
        ready = _tried(_by_the_library(model, slots, max_len), model, check)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise NotImplementedError(f"{name} cannot be served: {_cause(error)}" + (
            f" (on ragged batches: {reason})" if reason != _cause(error) else "")) from error
    warnings.warn(f"{name} runs through the library's own code, one request at a time, which is slow: {reason}",
                  RuntimeWarning, stacklevel=3)
    return ready


def _cause(error: Exception) -> str:
    """What a refusal says of an error; of one that is not ours its kind too: the library's may say nothing else."""
    ours = isinstance(error, (NotImplementedError, ValueError)) and str(error)
    return ours or f"the library's code raises {type(error).__name__}" + f": {error}" * bool(str(error))


def _on_ragged_batches(model: PreTrainedModel, slots: int, max_len: int, verification: str,
                       window: Window | None, chunk: int) -> Prepared:
    shared = share_weights(model).eval()
    needs = survey(shared, max_len)
    layers = getattr(model.config.get_text_config(), "num_hidden_layers", 0)
    if len(needs) < layers:             # the others would see one long sequence, across all requests
        raise NotImplementedError(f"only {len(needs)} of {layers} layers attend through the library's registry")
    if sorted(needs) != list(range(len(needs))):
        raise NotImplementedError(f"its attention layers are numbered {sorted(needs)}")
    attach(shared)
    fuse_layers(shared)
    pack_linears(shared)
    like = next((i for i in sorted(needs, key=lambda i: (needs[i].sight is not None, i)) if needs[i].plain), 0)
    base = needs[like]
    odd = {i: layer for i, layer in needs.items() if layer.sight or not layer.alike(base)}
    shape = (len(needs), slots, base.kv_heads, max_len, base.key_dim, model.dtype, model.device)
    if window is None:
        layers = [needs[i] for i in range(len(needs))]
        cache = SlotCache(*shape, shapes=[layer.shape for layer in layers], ahead=chunk + DRAFT,
                          windows=[layer.sight and layer.sight.size for layer in layers])
        ready = Prepared(shared, cache, needs, odd, like=like)
        for i, layer in enumerate(layers):
            ready.attentions.setdefault(ready.shape(i), Attention(verification, layer.heads, cache, i))
        return ready
    if other := [i for i, layer in odd.items() if not layer.alike(base)]:
        raise NotImplementedError(f"layer {min(other)} has a cap, sinks or widths of its own, which a sparse cache "
                                  "does not serve")
    cache = RingCache(window, *shape, sights={i: layer.sight for i, layer in odd.items()})
    ready = Prepared(shared, cache, needs, {}, like=like)
    ready.attentions[ready.base] = cache
    return ready


def _by_the_library(model: PreTrainedModel, slots: int, max_len: int) -> Prepared:
    refuse_positions(model)
    shared = share_weights(model).eval()
    tokens, expected, shapes = own_logits(shared, min(LENGTH, max_len))
    if not shapes:
        raise NotImplementedError("it keeps no keys and values of its past")
    refuse_parts(shared, tokens, expected)
    needs = {i: LayerNeeds(kv, kv, key, value) for i, (kv, key, value) in enumerate(shapes)}
    cache = SlotCache(len(shapes), slots, 0, max_len, 0, model.dtype, model.device, shapes)
    return Prepared(shared, cache, needs, needs, library=LibraryPasses(shared, cache))


@torch.inference_mode()
def _tried(ready: Prepared, model: PreTrainedModel, check: bool) -> Prepared:
    """Read a short text, so that a model which cannot be served is refused here and not in mid-service."""
    cache = ready.cache

    def forward(way, texts: list[list[int]], trees: list[Tensor | None], rows: Sequence[int]) -> Tensor:
        slots, counts = list(range(len(texts))), list(map(len, texts))
        tokens = torch.tensor([token for text in texts for token in text], device=model.device)
        batch = RaggedBatch.build(tokens, slots, counts, cache.lengths[:len(slots)], trees)
        logits = replace(ready, attentions=way).logits(batch, list(rows))
        for slot, count in zip(slots, counts):
            cache.lengths[slot] += count
        return logits

    if not check or cache.max_len < LENGTH:
        forward(ready.attentions, [[0]], [None], [0])
    else:
        tokens, expected, _ = own_logits(share_weights(model).eval())
        each = {shape: attention.ways(WIDTH) for shape, attention in ready.attentions.items()}
        names = each[ready.base] if each else ["request by request"]
        ways = {name: {shape: by_name[name] for shape, by_name in each.items()} for name in names}
        worst, where = difference(forward, cache.truncate, ways, len(cache.lengths), tokens, expected)
        if not worst <= TOLERANCE.get(expected.dtype, 1e-1):
            raise NotImplementedError(f"its logits differ from the library's by {worst:.1e} of the largest, which is "
                                      f"more than rounding ({where})")
    for slot in range(len(cache.lengths)):
        cache.truncate(slot, 0)
    return ready


def share_weights(model: PreTrainedModel) -> PreTrainedModel:
    """A deep copy of the modules whose parameters and buffers are the originals."""
    tensors = list(model.parameters()) + list(model.buffers())
    return copy.deepcopy(model, memo={id(t): t for t in tensors})


def record_states(model: PreTrainedModel, slots: int, max_len: int, layers: tuple[int, ...]) -> Tensor:
    """Have every pass of ``model`` write its states, for drafters that read them (:mod:`spin_core.zoo.fed`), into the
    tensor ``[slots, max_len, width]`` that is returned.

    They are written like the cache: entries of committed tokens are right, the others stale. The first ``hidden``
    columns are what the head read at every token, or what the model carries on itself (``carried``); behind them stand
    the inputs of ``layers``, of which number ``num_hidden_layers`` is the last norm.
    """
    hidden, body = model.config.get_text_config().hidden_size, model.base_model
    states = torch.zeros(slots, max_len, hidden * (1 + len(layers)), dtype=model.dtype, device=model.device)
    inputs: dict[int, Tensor] = {}

    def write(body, args, output) -> None:
        batch = current().batch
        own = model.carried(output) if hasattr(model, "carried") else output.last_hidden_state
        kept = torch.cat([own, *(inputs.pop(layer) for layer in layers)], -1) if layers else own
        states[batch.slot_of, batch.entry_of] = kept[0]

    for layer in layers:
        part = body.layers[layer] if layer < len(body.layers) else body.norm
        part.register_forward_pre_hook(lambda module, args, layer=layer: inputs.update({layer: args[0]}))
    body.register_forward_hook(write)
    return states
