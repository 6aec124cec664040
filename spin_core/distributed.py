"""One engine over several processes: the paper's deployment, started by ``torchrun``.

    torchrun --nproc-per-node 4 serve.py

    family = distributed.join(zoo.load(target="my/13B", drafters=["my/68M", "my/265M"], parts=2))       # serve.py
    engine = Engine(family)

The first ``parts`` ranks share the target (:mod:`spin_core.runtime.shared`); those behind them draft, each for some of
the drafters (:mod:`spin_core.draft.remote`). Rank 0 gets the family and decides everything. The other ranks serve it
and end with it; what follows ``join`` is not run there. A drafter whose rank dies is retired. Where a rank dies that
holds a part of the target, unfinished requests end with an error that names the rank.
"""

import atexit
import copy
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress

import torch.distributed as dist

from spin_core.draft import pool, remote
from spin_core.runtime import ranks, shared
from spin_core.zoo.fed import is_fed
from spin_core.zoo.table import DraftTable


def join(family, places: Mapping[str, int] | None = None):
    """Spread ``family`` over all processes; returns on rank 0 only, the family that engines are to be made of.

    Every process calls it with the family that it has loaded. ``places``: the rank that drafts for each drafter; by
    default the ranks without a part of the target take the model drafters in turn. Fed drafters, which read the
    target's states, and tables stay on rank 0. With one process nothing happens. Raises ValueError for places that are
    none.
    """
    if ranks.processes() == 1:
        return family
    if ranks.own_rank():
        raise SystemExit(_serve(family))
    parts = ranks.parts_of(family.target)
    models = [name for name, drafter in family.drafters.items()
              if not (isinstance(drafter, DraftTable) or is_fed(drafter))]
    homes = range(parts, ranks.processes())
    places = {name: homes[i % len(homes)] for i, name in enumerate(models)} if places is None and homes else \
        dict(places or {})
    for name, rank in places.items():
        if name not in models or not 0 < rank < ranks.processes():
            raise ValueError(f"drafter {name!r} cannot draft on rank {rank}: places are for {', '.join(models)} on the "
                             f"ranks from 1 to {ranks.processes() - 1}")
    family = copy.copy(family)
    family.ranks = ranks.gather(parts, places, family.target.device)
    atexit.register(_end, family.ranks)
    return family


def _end(joined: ranks.Ranks) -> None:
    joined.end()
    if dist.is_initialized() and not joined.lost:
        dist.destroy_process_group()


def _serve(family) -> int:
    """On another rank: serve rank 0 to its end; the exit code."""
    device = next((d.model.device for d in family.drafters.values() if hasattr(d, "model")), family.target.device)
    links = ranks.report(device)
    errors: list[BaseException] = []

    def draft() -> None:
        try:
            remote.host(lambda name, slots, max_len, bf16: pool.build(name, family, slots, max_len, None, bf16),
                        links["draft"], links["read"])
        except BaseException as error:
            errors.append(error)

    drafting = threading.Thread(target=draft, daemon=True, name="spin-draft")
    drafting.start()
    try:
        shared.follow(family.target, links["target"])
        drafting.join(ranks.NOTICE)
    except KeyboardInterrupt:           # of all processes: rank 0 says it
        return 130
    except BaseException as error:
        errors.append(error)
    if not errors:
        if dist.is_initialized():
            dist.destroy_process_group()
        return 0
    reason = f"{type(errors[0]).__name__}: {errors[0]}"
    print(f"rank {ranks.own_rank()}: {reason}", file=sys.stderr)
    with suppress(ranks.RankLost):
        links["life"].send(f"raised {reason}")
    return 1
