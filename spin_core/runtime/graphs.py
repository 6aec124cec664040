"""CUDA graphs for passes that are bound by launches: a drafter's next token, the verification of a few short drafts.

Such a pass computes for microseconds what takes milliseconds to launch, operator by operator; a captured pass is
launched as a whole. A graph has fixed shapes and reads fixed memory, so a pass is fitted into a bucket: B requests, T
rows for each (those with fewer are padded), L cache entries to attend to. Tokens, positions, slots and prefixes are
copied into the graph's inputs before it is replayed.

Padding rows write their keys behind what their request holds: stale entries, which are never read. Entries that were
never written may hold anything, even NaN, so they are blanked before they are multiplied by a weight of zero.
"""

import warnings
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from spin_core.runtime import ModelRunner
from spin_core.runtime.attention import Ragged, serving

MOST_REQUESTS, ROWS, SHORTEST = 32, (1, 2, 4, 8), 64     # larger passes have enough to compute
KEPT = 64               # graphs of one runner; the one that was used longest ago makes room


def attach(runner: ModelRunner) -> None:
    """Let ``runner`` replay graphs from now on, on a CUDA device; elsewhere, for a sparse cache and for
    layers with special needs nothing changes."""
    if runner.device.type == "cuda" and runner.plain and runner.graphs is None:
        runner.graphs = Graphs(runner)


class _Bucket:
    """One shape: the memory that stays, from which a pass of B x T rows reads, the pass, and the graph of it.

    ``numbers [4, B * T]`` are token, position, slot and entry of every row; ``keep [K]``, the rows whose logits are
    wanted; ``states [1, B * T, hidden]`` is for drafters that are fed. A pass takes it for its batch and its step.
    """

    def __init__(self, runner: ModelRunner, batch: int, rows: int, length: int, kept: int,
                 states: Tensor | None) -> None:
        self.runner, self.batch, self.rows, self.length = runner, batch, rows, length
        self.numbers = torch.zeros(4, batch * rows, dtype=torch.int64, device=runner.device)
        self.slot_of, self.entry_of = self.numbers[2], self.numbers[3]
        self.keep = torch.arange(kept, device=runner.device)
        self.states = None if states is None else states.new_zeros(1, batch * rows, states.shape[-1])
        self.graph, self.logits = None, None

    def attend(self, layer: int, query: Tensor, scale: float) -> Tensor:
        """Every request over the first L entries of its slot: ``query [heads, B * T, head_dim]`` ->
        ``[B * T, heads, head_dim]``."""
        heads, total, dim = query.shape
        entries = self.entry_of.view(self.batch, self.rows)
        slots = self.slot_of.view(self.batch, self.rows)[:, 0]
        at = torch.arange(self.length, device=query.device)
        written = (at <= entries[:, -1:])[:, None, :, None]
        keys, values = (torch.where(written, kept[layer][:, :, :self.length].index_select(0, slots), 0.0)
                        for kept in (self.runner.cache.k, self.runner.cache.v))
        query = query.view(heads, self.batch, self.rows, dim).transpose(0, 1)
        out = F.scaled_dot_product_attention(query, keys, values, attn_mask=(at <= entries[..., None])[:, None],
                                             scale=scale, enable_gqa=True)
        return out.permute(0, 2, 1, 3).reshape(total, heads, dim)

    def compute(self) -> Tensor:
        more = {} if self.states is None else {"states": self.states}
        with serving(Ragged(self, self.runner.cache, self)):
            return self.runner.model(input_ids=self.numbers[0][None], position_ids=self.numbers[1][None],
                                     use_cache=False, logits_to_keep=self.keep, **more).logits[0]

    def replay(self, pool) -> Tensor:
        """The same by the graph, which is captured first where there is none."""
        if self.graph is None:
            self._capture(pool)
        self.graph.replay()
        return self.logits

    def _capture(self, pool) -> None:
        here, aside = torch.cuda.current_stream(self.runner.device), torch.cuda.Stream(self.runner.device)
        aside.wait_stream(here)
        with torch.cuda.stream(aside):          # leads back to this stream, even from a capture that fails
            for _ in range(2):                  # what is set up lazily must not be set up while capturing
                self.compute()
            here.wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            # another thread may launch its own work meanwhile
            with torch.cuda.graph(graph, pool=pool, stream=aside, capture_error_mode="thread_local"):
                self.logits = self.compute()
        self.graph = graph                      # only a whole one may be replayed


class Graphs:
    """The graphs of one runner, made when a shape first comes up. On a CPU the same passes run without a graph.

    Where a pass cannot be captured (an operator that asks the device, no memory left) it and all others are computed
    without graphs, with one warning; ``failed`` says why.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.buckets: OrderedDict[tuple, _Bucket] = OrderedDict()
        self.failed: Exception | None = None            # what capturing raised
        self.pool = torch.cuda.graph_pool_handle() if runner.device.type == "cuda" else None

    @torch.inference_mode()
    def forward(self, slots: list[int], counts: list[int], tokens: Tensor | list[int], rows: list[int],
                states: Tensor | None = None) -> Tensor | None:
        """:meth:`ModelRunner.forward` of a pass that fits into a bucket; None, and nothing done, for any other.

        A pass fits with few requests and rows, each request once, and room for the padding in every slot.
        """
        cache, most = self.runner.cache, max(counts, default=0)
        wide = next((t for t in ROWS if t >= most), None)
        prefix = [cache.lengths[s] for s in slots]
        if self.failed or not slots or wide is None or min(counts) < 1 or len(slots) > MOST_REQUESTS or \
                len({*slots}) < len(slots) or max(prefix) + wide > cache.max_len:
            return None
        device, number = self.runner.device, torch.tensor(counts)[:, None]
        # padding repeats the request's last token: which row of the pass each row of the bucket stands for
        source = (number.cumsum(0) - number + torch.arange(wide).minimum(number - 1)).to(device)
        tokens = torch.as_tensor(tokens, dtype=torch.int64, device=device)[source]
        slot, first = torch.tensor([slots, prefix], device=device)
        logits = self.resident(tokens, slot, first, max(prefix), torch.arange(tokens.numel(), device=device),
                               None if states is None else states[0, source])
        wanted = [b * wide + t for b, count in enumerate(counts) for t in range(count)]
        for s, count in zip(slots, counts):
            cache.lengths[s] += count
        return logits.index_select(0, torch.tensor([wanted[r] for r in rows], dtype=torch.int64, device=device))

    @torch.inference_mode()
    def resident(self, tokens: Tensor, slots: Tensor, first: Tensor, most: int, keep: Tensor,
                 states: Tensor | None = None) -> Tensor:
        """A pass whose numbers are on the device, for a host that does not know them.

        ``tokens [B, T]``, the next T tokens of each request, however many of them are meant; ``slots [B]``; ``first
        [B]``, the cache entry of the first of them, which the host only knows to be at most ``most``; ``keep [K]``, the
        flattened rows whose logits are wanted; ``states [B, T, hidden]`` for drafters that are fed. All are int64 on
        the device. Returns the logits ``[K, V]``, good until the next pass.

        A row that has no room goes to the cache's last entry, which no text needs: a request that fills the one
        before has reached the limit. ``cache.lengths`` is left as it is.
        """
        cache, (batch, rows) = self.runner.cache, tokens.shape
        length = min(cache.max_len, max(SHORTEST, 1 << (most + rows - 1).bit_length()))
        bucket = self._bucket(batch, rows, length, len(keep), states)
        entries = (first[:, None] + torch.arange(rows, device=tokens.device)).clamp_(max=cache.max_len - 1)
        torch.stack([tokens, entries, slots[:, None].expand_as(entries), entries],
                    out=bucket.numbers.view(4, batch, rows))
        bucket.keep.copy_(keep)
        if states is not None:
            bucket.states.copy_(states.reshape(bucket.states.shape))
        return self._run(bucket)[:, :self.runner.vocab_size]

    def _run(self, bucket: _Bucket) -> Tensor:
        """The bucket's logits ``[K, V]``; good until the next run of any."""
        if self.pool and not self.failed:
            try:
                return bucket.replay(self.pool)
            except Exception as error:                  # nothing is committed yet: what is computed now writes anew
                self.failed = error
                self.buckets.clear()                    # and the memory of their graphs
                warnings.warn(f"no CUDA graphs: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=3)
        return bucket.compute()

    def _bucket(self, batch: int, rows: int, length: int, kept: int, states: Tensor | None) -> _Bucket:
        key = batch, rows, length, kept, states is None
        if key not in self.buckets:
            if len(self.buckets) >= KEPT:
                self.buckets.popitem(last=False)
            self.buckets[key] = _Bucket(self.runner, batch, rows, length, kept, states)
        self.buckets.move_to_end(key)
        return self.buckets[key]
