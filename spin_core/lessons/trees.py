"""What trees bring on real prompts: how often the target's token is among a drafter's first k, and tokens per
verification by drafter, shape and way of drawing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import torch

from spin_core.draft import ModelDrafter
from spin_core.engine import Engine, Prompt
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


def verifications(engine: Engine, name: str, prompts: Sequence[Prompt], params: SamplingParams,
                  gamma: int | None = None) -> list[list[Event]]:
    """Per prompt its verifications, drafted for by ``name``; sampling prompts have seeds 0, 1, ..."""
    told = len(engine.trace.events)
    requests = engine.generate(prompts, [params.with_(seed=seed) for seed in range(len(prompts))], drafter=name,
                               gamma=gamma)
    if failed := [r.error for r in requests if r.error]:
        raise RuntimeError(failed[0])
    if name in engine.retired:
        raise engine.retired[name]
    runs: dict[int, list[Event]] = {r.id: [] for r in requests}
    for event in engine.trace.events[told:]:
        if event.kind == "step" and event.emitted:
            runs[event.request].append(event)
    return list(runs.values())


def tau(runs: Iterable[list[Event]]) -> float:
    """Tokens per verification."""
    steps = [event for run in runs for event in run]
    return sum(len(event.emitted) for event in steps) / len(steps)


def step_seconds(runs: Iterable[list[Event]], batch: int) -> float:
    """The median step that served ``batch`` requests, none of them for the first time: that one reads its prompt."""
    reading = {run[0].step for run in runs if run}
    return statistics.median([event.step_seconds for run in runs for event in run
                              if event.batch == batch and event.step not in reading])


@torch.inference_mode()
def ranks(engine: Engine, name: str, requests: Sequence[Request]) -> list[int]:
    """Of every output token of finished ``requests``: how many tokens the drafter ``name`` puts before it, given the
    text so far; ``NEVER`` where it cannot say the token. The engine must be idle.

    Raises ValueError for a drafter that is no model.
    """
    drafter = engine.drafter_called(name)
    if not isinstance(drafter, ModelDrafter):
        raise ValueError(f"ranks: {name!r} has no scores to rank tokens by")
    column = {int(token): i for i, token in enumerate(drafter.ids)} if drafter.ids is not None else None
    out: list[int] = []
    for request in requests:
        ids, first = request.ids, len(request.prompt_ids)
        engine.target.forward([0], [len(ids)], ids, [])         # a fed drafter reads what the target makes of the text
        logits = drafter.runner.forward([0], [len(ids) - 1], ids[:-1], list(range(first - 1, len(ids) - 1)),
                                        **drafter._feed([0], [len(ids) - 1]))
        for row, token in zip(logits, ids[first:]):
            at = token if column is None else column.get(token)
            out.append(NEVER if at is None else int((row > row[at]).sum()))
        engine.target.cache.truncate(0, 0)
        drafter.rollback(0, 0)
    return out


def match_rates(found: Sequence[int], most: int = 5) -> list[float]:
    """Share of tokens among the drafter's first 1, 2, ..., ``most``."""
    return [sum(rank < k for rank in found) / len(found) for k in range(1, most + 1)]


def acceptance_by_rank(found: Sequence[int], most: int = 8) -> list[float]:
    """Share of tokens that are the drafter's first, second, ...: greedy acceptance of the child of that rank."""
    return [found.count(rank) / len(found) for rank in range(most)]
