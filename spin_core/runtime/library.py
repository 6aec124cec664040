"""Passes through the library's own code, one request at a time: for models whose attention cannot be replaced.

Exact for every model that keeps keys and values and nothing else. The library writes to and reads from the request's
slot, through cache layers that stand for it. A token tree is read path by path, each as the chain that it would be.
"""

import inspect

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache


class _SlotLayer(DynamicLayer):
    """One layer of one request: ``seen``, the entries before, and ``new``, those of the tokens that are being read."""

    def __init__(self, keys: Tensor, values: Tensor, seen: Tensor, new: Tensor) -> None:
        super().__init__()
        self.store, self.seen, self.new, self.all = (keys, values), len(seen), new, torch.cat([seen, new])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        for store, states in zip(self.store, (key_states, value_states)):
            store[:, self.new] = states[0]
        return tuple(store.index_select(1, self.all).unsqueeze(0) for store in self.store)

    def get_seq_length(self) -> int:
        return self.seen


class LibraryPasses:
    """Runs ``model``, untouched, over the slots of ``cache``."""

    def __init__(self, model: PreTrainedModel, cache: SlotCache) -> None:
        self.model, self.cache = model, cache

    def logits(self, batch: RaggedBatch, rows: list[int]) -> Tensor:
        """The logits ``[R, V]`` of the flattened ``rows``; all keys and values of the batch are in the cache then."""
        out, wanted = {}, set(rows)
        for b, (start, count) in enumerate(zip(batch.starts, batch.counts)):
            for seen, nodes in _chains(batch, b):
                found = self._chain(batch, b, seen, nodes)
                out |= {start + node: row for node, row in zip(nodes, found) if start + node in wanted}
        return torch.stack([out[row] for row in rows]) if rows else \
            self.model.get_input_embeddings().weight.new_empty(0, self.model.config.get_text_config().vocab_size)

    def _chain(self, batch: RaggedBatch, b: int, seen: list[int], nodes: list[int]) -> Tensor:
        device, slot = self.cache.k[0].device, batch.slots[b]
        places = torch.tensor(seen, dtype=torch.int64, device=device)
        new = torch.tensor([batch.prefix[b] + node for node in nodes], device=device)
        past = DynamicCache()
        past.layers = [_SlotLayer(key[slot], value[slot], places, new)
                       for key, value in zip(self.cache.k, self.cache.v)]
        tokens = batch.tokens[torch.tensor([batch.starts[b] + node for node in nodes], device=device)]
        return call(self.model, tokens, past, len(seen)).logits[0]


def _chains(batch: RaggedBatch, b: int) -> list[tuple[list[int], list[int]]]:
    """What request b asks for, as chains: the entries before each, and its in-flight tokens."""
    prefix, count, tree = batch.prefix[b], batch.counts[b], batch.ancestors[b]
    if not count:
        return []
    if tree is None:
        return [(list(range(prefix)), list(range(count)))]
    rows, held = tree.tolist(), tree.shape[1] - count
    inner = {j for i, row in enumerate(rows) for j, sees in enumerate(row[held:]) if sees and j != i}
    chains = []
    for leaf in (i for i in range(count) if i not in inner):
        before = [batch.seen[b] + j for j in range(held) if rows[leaf][j]]
        chains.append((list(range(batch.seen[b])) + before, [j for j in range(count) if rows[leaf][held + j]]))
    return chains


def call(model: PreTrainedModel, tokens: Tensor, past: DynamicCache, start: int):
    """The library's own pass over ``tokens [T]``, which follow ``start`` others in ``past``, as its ``generate`` makes
    it: with positions and a mask of ones, if the model takes them (without a mask, some would not be causal in some
    releases), under the name that this release has for a cache."""
    takes = inspect.signature(model.forward).parameters
    name = next((name for name in ("past_key_values", "cache", "cache_params") if name in takes), "past_key_values")
    end = start + len(tokens)
    inputs = {"position_ids": torch.arange(start, end, device=tokens.device)[None],
              "attention_mask": torch.ones(1, end, dtype=torch.int64, device=tokens.device), name: past}
    return model(input_ids=tokens[None], use_cache=True,
                 **{key: value for key, value in inputs.items() if key == name or key in takes})
