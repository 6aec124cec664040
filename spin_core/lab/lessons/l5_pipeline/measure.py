"""Lesson 5's numbers: how long the stages take, and what the schedule makes of that."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from spin_core.lab.bench.pipeline import Stage
from spin_core.lab.results.stored import newest
from spin_core.lab.schedule import simulate
from spin_core.lab.simulate.micro_batches import split_time, steady


def stored_counts(directory: str | Path | None = None) -> tuple[dict, dict[int, tuple[Stage, Stage]], dict] | None:
    """What ``bench pipeline`` measured last: goodput with its lowest and highest run by setting ("off", counts,
    "auto"), drafting and verifying by number of threads, and the provenance. None where no machine has stored it."""
    found = newest("pipeline", directory)
    if found is None:
        return None
    goodput = {row["micro_batches"]: row for what in ("compared", "picking") for row in found.rows
               if row["what"] == what}
    times: dict[int, list[Stage]] = {}
    for row in found.rows:
        if row["what"] == "stage":
            times.setdefault(row["threads"], []).append(Stage(row["seconds"], row["fixed"]))
    return goodput, {threads: tuple(pair) for threads, pair in times.items()}, found.origin


def modelled(stages: Mapping[int, tuple[Stage, Stage]], counts: Sequence[int]) -> dict[str, dict[int, float]]:
    """What the schedule makes of drafting and verifying, ``stages`` by number of threads (all and half of them), at
    each count, relative to taking turns with all. "refilled": the pipeline runs empty at the end of every round."""
    whole, half = stages[max(stages)], stages[min(stages)]
    turns = sum(stage.seconds for stage in whole)
    ways = {"a device per stage": (whole, False), "the same, refilled": (whole, True),
            "half the cores per stage": (half, False)}
    lines = {name: {m: turns / round_seconds(*pair, m, refill) for m in counts}
             for name, (pair, refill) in ways.items()}
    lines["half the cores per stage"][1] = 1.0          # a single micro-batch has all cores
    return lines


def round_seconds(draft: Stage, verify: Stage, count: int, refill: bool) -> float:
    """Seconds per round with ``count`` equal groups."""
    times = [split_time(s.seconds, s.fixed, [1 / count] * count) for s in (draft, verify)]
    return simulate(*times).seconds if refill else steady(*times)


def climb(decisions: Sequence) -> list:
    """The decisions about the load under which most counts were measured, up to the one that knew them all."""
    climbs, current = [], []
    for decision in decisions:
        if decision.why in ("start with one", "another load"):
            current = []
        current.append(decision)
        if not decision.why.startswith("try"):
            climbs.append(list(current))
    return max(climbs, key=lambda c: (len(c[-1].throughput), sum(c[-1].throughput.values())), default=[])
