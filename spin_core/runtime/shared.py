"""A target over several ranks: each holds a share of every layer, and all compute each pass together.

The sharding is the model library's own plan. Rank 0 decides everything, as one process does, and tells the others which
pass to compute: slots, how many tokens each one's cache holds (which carries admissions, cancellations and roll-backs),
the next tokens, and the wanted rows. So nothing that is decided by the clock can differ between ranks.
"""

import itertools
import weakref
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from spin_core.runtime.graphs import Graphs, attach
from spin_core.runtime.ranks import Link, Ranks, parts_of
from spin_core.runtime.runner import ModelRunner

_numbers = itertools.count()


def target_runner(family, *size, **settings) -> ModelRunner:
    """The runner of the family's target; the arguments are :class:`ModelRunner`'s.

    Raises ValueError for a target of which other processes hold parts that do not follow this one.
    """
    ranks = getattr(family, "ranks", None)
    if parts_of(family.target) == 1:
        return ModelRunner(family.target, *size, **settings)
    if ranks is None:
        raise ValueError(f"the target is spread over {parts_of(family.target)} processes: pass the family through "
                         "spin_core.distributed.join first")
    return SharedRunner(ranks, family.target, *size, **settings)


class SharedRunner(ModelRunner):
    """On rank 0, a :class:`ModelRunner` whose passes the other ranks compute, too (:func:`follow`)."""

    def __init__(self, ranks: Ranks, *size, **settings) -> None:
        self.ranks, self.number = ranks, next(_numbers)
        with ranks.together("make", self.number, size[1:], settings):
            super().__init__(*size, **settings)
        weakref.finalize(self, ranks.dropped.append, self.number)

    def forward(self, slots: list[int], counts: list[int], tokens: Tensor | list[int], rows: list[int],
                ancestors: list[Tensor | None] | None = None, graphs: bool = True, **inputs) -> Tensor:
        for slot, count in zip(slots, counts):
            self.cache.check_room(slot, count)      # raises, where it must, before the others are told
        tokens = tokens if isinstance(tokens, list) else tokens.tolist()
        held = [self.cache.lengths[slot] for slot in slots]
        with self.ranks.together("forward", self.number, self.graphs is not None, held, slots, counts, tokens, rows,
                                 ancestors, graphs):
            return super().forward(slots, counts, tokens, rows, ancestors, graphs, **inputs)

    def keep(self, slots: list[int], bases: list[int], paths: list[list[int]]) -> None:
        with self.ranks.together("keep", self.number, slots, bases, paths):
            super().keep(slots, bases, paths)


class SharedGraphs(Graphs):
    """Passes whose numbers the host does not know: they go to the other ranks from device to device."""

    def resident(self, tokens: Tensor, slots: Tensor, first: Tensor, most: int, keep: Tensor,
                 states: Tensor | None = None) -> Tensor:
        ranks, shape = self.runner.ranks, tuple(tokens.shape)
        with ranks.together("resident", self.runner.number, shape, len(keep), most):
            dist.broadcast(torch.cat([tokens.flatten(), slots, first, keep]), 0)
            return super().resident(tokens, slots, first, most, keep, states)


SharedRunner.graphs_type = SharedGraphs


def follow(model, link: Link) -> None:
    """On another rank: compute the passes that rank 0 tells of, until it ends. Raises EOFError where it has died."""
    runners: dict[int, ModelRunner] = {}
    resident: dict[int, Graphs] = {}
    while True:
        _, what, *message = link.receive()
        if what == "end":
            return
        number, *rest = message
        if what == "make":
            with suppress(Exception):           # rank 0 meets the same error, and makes no use of the runner
                runners[number] = ModelRunner(model, *rest[0], **rest[1])
        elif what == "drop":
            runners.pop(number, None)
            resident.pop(number, None)
        elif what == "forward":
            _forward(runners[number], *rest)
        elif what == "keep":
            runners[number].keep(*rest)
        elif what == "resident":
            _resident(resident.setdefault(number, Graphs(runners[number])), *rest)


def _forward(runner: ModelRunner, by_graph: bool, held: list[int], slots: list[int], *rest: Any) -> None:
    if by_graph:
        attach(runner)
    for slot, length in zip(slots, held):
        runner.cache.lengths[slot] = length
    runner.forward(slots, *rest)


def _resident(graphs: Graphs, shape: tuple[int, int], kept: int, most: int) -> None:
    (batch, rows), device = shape, graphs.runner.device
    sizes = [batch * rows, batch, batch, kept]
    numbers = torch.empty(sum(sizes), dtype=torch.int64, device=device)
    dist.broadcast(numbers, 0)
    tokens, slots, first, keep = numbers.split(sizes)
    graphs.resident(tokens.view(batch, rows), slots, first, most, keep)
