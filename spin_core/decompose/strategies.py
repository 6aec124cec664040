"""One name, one way to attend: what a model runner asks for the attention of every step."""

import copy

import torch

from spin_core.decompose.attend import TorchStep, Workspace
from spin_core.decompose.calibrate import measured
from spin_core.decompose.costs import Costs, Heads
from spin_core.decompose.needs import Sight, View
from spin_core.decompose.plan import LARGE, STRATEGIES, Plan, plan
from spin_core.decompose.steps import step_class
from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache


class Attention:
    """Plans and runs the attention over one cache by the strategy of that name (see :func:`plan`), or by "flex",
    today's kernel without padding (:mod:`spin_core.lab.rivals`).

    All strategies give the same result up to the rounding of sums. Costs are measured when the first batch comes
    for which they matter. ``layer`` is one of those whose shape the steps are made for: keys and values of two widths
    are left to "per-request" where "flex" cannot have them. Raises ValueError for a name that is not known.
    """

    def __init__(self, strategy: str, num_heads: int, cache: SlotCache, layer: int = 0) -> None:
        self.strategy, self.cache, self.layer = strategy, cache, layer
        self.width: int | None = None       # of pieces; None: the cheapest
        kv = cache.k[layer].shape[1]
        self.heads = Heads(kv, num_heads // kv)
        self.threads = torch.get_num_threads()      # of the thread that serves; others may read along with fewer
        self.workspace = Workspace()
        k, v = cache.k[layer], cache.v[layer]
        uneven = strategy == "flex" and k.is_cuda and k.shape[3] != v.shape[3]
        self.cls = TorchStep if uneven else step_class(strategy, cache)
        # the kernels read pieces where they lie in the cache, all at once: none stays unpooled
        self.in_place = self.cls is not TorchStep and strategy in ("auto", "decomposed")

    def plan(self, lengths: list[int], q_lens: list[int]) -> Plan:
        """The plan for one step: ``lengths`` are keys per request, in-flight tokens included."""
        name = "decomposed" if self.in_place else self.strategy if self.strategy in STRATEGIES else "per-request"
        # a single request needs no pool, whatever the device charges
        matters = self.in_place or sum(0 < q <= LARGE for q in q_lens) > (name == "auto")
        weigh = matters and name in ("auto", "decomposed") and not self.width
        return plan(lengths, q_lens, name, costs=self.costs() if weigh else None, width=self.width,
                    max_len=self.cache.max_len)

    def ways(self, width: int) -> dict[str, "Attention"]:
        """By name, attention in each way that this one may choose, without measuring: pieces have ``width`` keys."""
        names = ("per-request", "grouped", "decomposed") if self.strategy == "auto" else (self.strategy,)
        ways = {}
        for name in ("decomposed",) if self.in_place else names:
            ways[name] = copy.copy(self)
            ways[name].strategy, ways[name].width = name, width
        return ways

    def costs(self) -> Costs:
        """What this device charges."""
        k = self.cache.k[self.layer]
        return measured(k.device, k.dtype, self.heads.kv, self.heads.group, k.shape[3], self.threads)

    def step(self, batch: RaggedBatch, sight: Sight | None = None) -> TorchStep:
        """The attention of one step over ``batch``, shared by all layers of this shape and ``sight``. A plan covers the
        keys in sight."""
        view = View(batch, sight)
        plan = self.plan(view.lengths, batch.counts)
        # the kernels' bit masks hold 63 in-flight tokens: a drafter's tree may be larger
        wide = any(p + c - seen > 63 for p, c, seen in zip(batch.prefix, batch.counts, batch.seen) if seen < p)
        return (TorchStep if wide else self.cls)(plan, batch, self.cache, self.heads, self.workspace, view, self.layer)
