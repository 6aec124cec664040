"""What trees bring on real prompts: how often the target's token is among a drafter's first k, and tokens per
verification by drafter, shape and way of drawing."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from scipy.stats import t

from spin_core.draft import ModelDrafter
from spin_core.engine import Engine, Prompt
from spin_core.lab.results.stored import newest
from spin_core.lab.simulate.best_shape import best_shape
from spin_core.request import Request, SamplingParams
from spin_core.trace import Event

NEVER = 10**9       # the rank of a token that a drafter does not have

# SpecInfer, arXiv 2305.09781: OPT or LLaMA targets at their scale, not ours
PUBLISHED_MATCH = {"greedy": (0.68, 0.77, 0.81, 0.84, 0.85), "sampled": (0.54, 0.81, 0.91, 0.95, 0.97)}     # table 1
PUBLISHED_TAU = {"greedy": {1: 2.95, 5: 3.43}, "sampled": {1: 1.79, 5: 2.38}}       # table 2, by width
PUBLISHED_RULES = {"multi-step": 2.38, "naive": 1.87}                               # table 3


def paper_shape(width: int) -> str:
    """SpecInfer's expansion with ``width`` children at the third level."""
    return f"1,1,{width},1,1,1,1,1"


def verifications(engine: Engine, name: str, prompts: Sequence[Prompt], params: SamplingParams) -> list[list[Event]]:
    """Per prompt its verifications, drafted for by ``name``; sampling prompts have seeds 0, 1, ..."""
    start = len(engine.trace.events)
    requests = engine.generate(prompts, [params.with_(seed=seed) for seed in range(len(prompts))], drafter=name)
    if failed := [r.error for r in requests if r.error]:
        raise RuntimeError(failed[0])
    if name in engine.retired:
        raise engine.retired[name]
    runs: dict[int, list[Event]] = {r.id: [] for r in requests}
    for event in engine.trace.events[start:]:
        if event.kind == "step" and event.emitted:
            runs[event.request].append(event)
    return list(runs.values())


class Estimate(NamedTuple):
    """A ratio of sums over prompts, and its 95 % interval: None for a single prompt."""

    value: float
    low: float | None
    high: float | None


def estimate(parts: Sequence[float], of: Sequence[float]) -> Estimate:
    """sum(parts) / sum(of), a pair for each prompt. Tokens of one prompt are alike, so prompts are what varies."""
    value, count = sum(parts) / sum(of), len(parts)
    if count < 2:
        return Estimate(value, None, None)
    left = sum((part - value * whole) ** 2 for part, whole in zip(parts, of))
    half = t.ppf(.975, count - 1) * (left * count / (count - 1)) ** .5 / sum(of)
    return Estimate(value, value - half, value + half)


def tokens_per_verification(runs: Sequence[list[Event]]) -> Estimate:
    """``runs``: the verifications of each prompt."""
    return estimate([sum(len(event.emitted) for event in run) for run in runs], list(map(len, runs)))


def by_rank(match: Sequence[float]) -> list[float]:
    """Acceptance of the child of rank 0, 1, ... from the shares of tokens among a drafter's first 1, 2, ..."""
    return [right - before for before, right in zip([0.0, *match], match)]


def tokens_by_nodes(rates: Sequence[float], nodes: Sequence[int]) -> dict[str, list[float]]:
    """Tokens expected per verification of a chain and of the best tree, by their number of nodes."""
    return {"chain": [best_shape(rates[:1], n, n)[1] for n in nodes],
            "best tree": [best_shape(rates, n, n)[1] for n in nodes]}


def step_seconds(runs: Iterable[list[Event]], batch: int) -> float:
    """The median step that served ``batch`` requests, none of them for the first time: that one reads its prompt.
    Raises ValueError if there was none."""
    reading = {run[0].step for run in runs if run}
    steps = [event.step_seconds for run in runs for event in run if event.batch == batch and event.step not in reading]
    if not steps:
        raise ValueError(f"no step served {batch} requests that had all been read: allow more new tokens")
    return statistics.median(steps)


@torch.inference_mode()
def ranks(engine: Engine, name: str, requests: Sequence[Request]) -> list[int]:
    """Of every output token of finished ``requests``: how many tokens the drafter ``name`` puts before it, given the
    text so far; ``NEVER`` where it cannot say the token. The engine must be idle.

    Raises ValueError for a drafter that is no model.
    """
    drafter = engine.get_drafter(name)
    if not isinstance(drafter, ModelDrafter):
        raise ValueError(f"ranks: {name!r} has no scores to rank tokens by")
    column = {int(token): i for i, token in enumerate(drafter.ids)} if drafter.ids is not None else None
    out: list[int] = []
    for request in requests:
        ids, first = request.ids, len(request.prompt_ids)
        engine.target.forward([0], [len(ids)], ids, [])         # a fed drafter reads what the target makes of the text
        logits = drafter.runner.forward([0], [len(ids) - 1], ids[:-1], list(range(first - 1, len(ids) - 1)),
                                        **drafter._extra_inputs([0], [len(ids) - 1]))
        for row, token in zip(logits, ids[first:]):
            at = token if column is None else column.get(token)
            out.append(NEVER if at is None else int((row > row[at]).sum()))
        engine.target.cache.truncate(0, 0)
        drafter.rollback(0, 0)
    return out


def match_rates(found: Sequence[Sequence[int]], most: int = 5) -> list[Estimate]:
    """Share of tokens among the drafter's first 1, 2, ..., ``most``; ``found``: :func:`ranks` of each text."""
    return [estimate([sum(rank < k for rank in text) for text in found], list(map(len, found)))
            for k in range(1, most + 1)]


@dataclass(frozen=True)
class Recorded:
    """What ``bench trees`` measured: the ``drafter`` that grew the trees, ``match[way][drafter]`` and
    ``tau[way][width]`` as in SpecInfer's tables, ``cost[batch][width]`` in milliseconds per token, ``best[nodes]``,
    the tokens per verification of the best tree, and the provenance."""

    drafter: str
    match: dict[str, dict[str, list[Estimate]]]
    tau: dict[str, dict[int, Estimate]]
    cost: dict[int, dict[int, float]]
    best: dict[int, float]
    origin: dict


def recorded(directory: str | Path | None = None) -> Recorded:
    """The newest report of ``bench trees`` in figures/data. Raises ValueError where there is none."""
    found = newest("trees", directory)
    if found is None:
        raise ValueError("no trees are stored: python -m spin_core bench trees --json figures/data/MACHINE/trees.json")
    match, tau, cost, best, drafter = {}, {}, {}, {}, ""
    for row in found.rows:
        part, at, value = row["part"], row["at"], Estimate(row["measured"], row.get("low"), row.get("high"))
        if part.startswith("1:"):
            match.setdefault(row["decoding"], {}).setdefault(row["drafter"], []).append(value)
        elif part.startswith("2:"):
            drafter = row["drafter"]
            tau.setdefault(row["decoding"], {})[at] = value
        elif part.startswith("map:"):
            batch, width = (int(words.split()[1]) for words in at.split(", "))      # "batch 4, width 5"
            cost.setdefault(batch, {})[width] = value.value
        elif part.startswith("best shape") and at.endswith("measured"):             # "0.0.1, measured"
            shape, _, _ = at.rpartition(", ")
            if "," not in shape:                # Sequoia's shapes name their nodes; others are levels
                best[len(shape.split("."))] = value.value
    return Recorded(drafter, match, tau, cost, best, found.origin)
