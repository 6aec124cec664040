"""SPIN's evaluation on the paper's hardware, modelled: the setting, and the runs behind the figures.

Known: V100s, each drafter on one of its own, LLaMA-7B on one, 13B on two, 30B on four; batch 8; the data
sets. Not known, and chosen here: cards of 32 GB, 16-bit weights, four drafted tokens, and that "vanilla",
one fixed drafter over padded batches that are gathered anew at every step, uses the 68M model. Which drafter
that is moves every ratio, so the best fixed drafter in hindsight always stands beside it. What a pass computes is not
known either: every function takes a ``hypothesis`` (:mod:`spin_core.lab.simulate.hypotheses`).
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from spin_core.select import make
from spin_core.select.base import NONE
from spin_core.lab.simulate.oracle import chain_counts, oracle_steps
from spin_core.lab.simulate.recording import Recording
from spin_core.lab.simulate.replay import replay
from spin_core.lab.simulate import acceptance
from spin_core.lab.simulate.costs import Roofline
from spin_core.lab.simulate.hypotheses import HYPOTHESES
from spin_core.lab.simulate.checks import whole
from spin_core.lab.simulate.profiles import DRAFTERS, HARDWARE, TARGETS, TENSOR_PARALLEL, Model
from spin_core.lab.simulate.simulator import Run, simulate

CARD, BATCH, GAMMA, VANILLA = "V100-32GB", 8, 4, "68M"
CONTEXT = 150           # tokens of a request in the middle of its answer, where one number has to do
RUNGS = {"vanilla": (None, "padded", 1), "+ selection": ("spin", "padded", 1),
         "+ decomposition": ("spin", "decomposed", 1), "+ pipeline": ("spin", "decomposed", "auto")}
"""Rung -> policy (None: one drafter for all), verification, micro-batches."""

# Published (SPIN, arXiv 2503.15921): speed-up over vanilla speculation. Numbers of figures above 7 are inferred.
OVERALL = {"overall": 2.28, "Alpaca, LLaMA-7B": 2.34}
ABLATION = {"+ selection": 1.45, "+ decomposition": 1.81, "+ pipeline": 1.99}       # CP, LLaMA-7B
LATENCY = {"padded": 0.52921, "decomposed": 0.33546}                                # seconds, Alpaca, batch 16
MICRO_BATCHES = {"gain at 4": 1.29, "best": {"Alpaca": 5, "CP": 3}, "worse": 9}


RECORDED = "recorded drafts"
"""A data set beside the made-up ones: what the embedded drafters really drafted, and their target really accepted."""


@functools.cache
def pool(data_set: str) -> dict[str, Model]:
    """The drafters of a data set, by name, the smallest first: vanilla's. A recorded drafter takes the share of the
    target's pass that it took on the machine of the recording: as many layers of LLaMA-7B."""
    if data_set != RECORDED:
        return DRAFTERS
    recording, target = Recording.load(), TARGETS["LLaMA-7B"]
    share = {a: float(recording.passes[a](1) / recording.passes["target"](1)) for a in recording.drafters
             if a not in recording.lookups}
    return {a: replace(target, name=a, layers=max(1, round(share[a] * target.layers)))
            for a in sorted(share, key=share.get)}


@functools.cache
def system(target: str, strategy: str = "decomposed", card: str = CARD, gathered: bool = True, dtype: str = "fp16",
           hypothesis: str = "cached", data_set: str = "") -> Roofline:
    """Costs of ``target`` where the paper puts it, by a ``hypothesis``; drafters on cards of their own. ValueError
    for a name that is not known."""
    for what, name, known in (("target", target, TARGETS), ("card", card, HARDWARE), ("hypothesis", hypothesis,
                                                                                      HYPOTHESES)):
        if name not in known:
            raise ValueError(f"unknown {what} {name!r}; known: {', '.join(known)}")
    return HYPOTHESES[hypothesis](TARGETS[target], pool(data_set), HARDWARE[card], devices=TENSOR_PARALLEL[target],
                                  strategy=strategy, gathered=gathered, dtype=dtype)


@functools.lru_cache(16)
def texts(data_set: str, requests: int, seed: int = 0, scale: float = 1.0, spread: float | None = None) -> Recording:
    """A made-up recording of ``data_set``, with the costs of LLaMA-7B on one card; of ``RECORDED``, the real one in an
    order drawn from ``seed``."""
    if data_set == RECORDED:
        real = Recording.load().only(tuple(pool(RECORDED)))
        order = np.random.default_rng(seed).permutation(max(requests, len(real)))[:requests]
        return real.take(order % len(real))
    return acceptance.recording(data_set, requests, system("LLaMA-7B").passes(), seed, scale=scale, spread=spread)


def serve(data_set: str, target: str, policy: str, *, strategy: str = "decomposed", micro_batches: int | str = 1,
          requests: int = 200, batch: int = BATCH, card: str = CARD, dtype: str = "fp16", hypothesis: str = "cached",
          arrivals: Sequence[float] | None = None, by_length: bool = False, places: int | None = None, seed: int = 0,
          scale: float = 1.0, spread: float | None = None, **options) -> Run:
    """One system over one data set. ``policy``: a drafter, "none", or a selection policy with its ``options``.
    ``arrivals``: when the requests come, in seconds; None: all at once. ``places``: how many requests each drafter can
    serve at once; None: any number. ``scale``, ``spread``: of lengths of texts."""
    drafters = list(pool(data_set))
    if policy not in drafters and policy != NONE:
        options = ({"own_devices": True} if policy == "spin" else {}) | options
        policy = make(policy, drafters, gamma=GAMMA, seed=seed, **options)
    costs = system(target, strategy, card, dtype=dtype, hypothesis=hypothesis, data_set=data_set)
    return simulate(texts(data_set, requests, seed, scale, spread), costs, policy, batch=batch, gamma=GAMMA,
                    micro_batches=micro_batches, arrivals=arrivals, by_length=by_length,
                    capacities=None if places is None else dict.fromkeys(drafters, places))


def rung(name: str, data_set: str, target: str, vanilla: str | None = None, **more) -> Run:
    """One rung of the ablation ladder; ``vanilla``: its drafter, by default the smallest. Raises KeyError for a rung
    that is not in ``RUNGS``."""
    policy, strategy, groups = RUNGS[name]
    return serve(data_set, target, policy or vanilla or next(iter(pool(data_set))), strategy=strategy,
                 micro_batches=groups, **more)


def averaged(seeds: int, run: Callable[..., Run], *args, **more) -> float:
    """Mean goodput of ``run`` over texts and policies with so many seeds: one run may lie several percent off."""
    whole("averaged", 1, seeds=seeds)
    return float(np.mean([run(*args, seed=seed, **more).goodput for seed in range(seeds)]))


def ladder(data_set: str, target: str = "LLaMA-7B", seeds: int = 1, **more) -> dict[str, float]:
    """Goodput in tokens/s, from one fixed drafter over padded batches to all of SPIN."""
    return {name: averaged(seeds, rung, name, data_set, target, **more) for name in RUNGS}


def climbed(data_set: str, target: str, seeds: int = 1, **more) -> float:
    """The ladder's last rung alone."""
    return averaged(seeds, rung, list(RUNGS)[-1], data_set, target, **more)


def fixed(data_set: str, target: str = "LLaMA-7B", strategy: str = "padded", seeds: int = 1,
          **more) -> dict[str, float]:
    """Goodput of every drafter alone, and of plain decoding."""
    return {arm: averaged(seeds, serve, data_set, target, arm, strategy=strategy, **more)
            for arm in (*pool(data_set), NONE)}


def best_shares(recording: Recording, batch: int = BATCH, hypothesis: str = "cached") -> dict[str, float]:
    """For which share of the requests of :func:`texts` each drafter is the best: the most tokens per second against
    LLaMA-7B, at the price of passes that all of ``batch`` share. SPIN's motivation."""
    whole("best_shares", 1, batch=batch)
    costs = system("LLaMA-7B", hypothesis=hypothesis)
    verify = costs.verify(np.full(batch, CONTEXT), np.full(batch, GAMMA)).seconds
    seconds = []
    for arm, drafter in enumerate(recording.arms):
        steps, _, passes = chain_counts(recording, arm, GAMMA)
        seconds.append(steps * verify + passes * costs.draft(drafter, batch, [batch], batch * CONTEXT))
    best = np.bincount(np.argmin(seconds, 0), minlength=len(recording.arms)) / len(recording)
    return dict(zip(recording.arms, best.tolist()))


def selection_ceilings(data_set: str, requests: int = 200, batch: int = BATCH) -> dict[str, float]:
    """What no selection can pass by much, over vanilla's drafter for all, against LLaMA-7B: the oracles of single
    steps (:mod:`spin_core.lab.simulate.oracle`), by replay."""
    recording = texts(data_set, requests)
    lengths = dict.fromkeys(recording.arms, GAMMA)
    vanilla = replay(recording, make(f"fixed:{VANILLA}", recording.arms, gamma=GAMMA), batch=batch).goodput
    return {name: oracle_steps(recording, known, batch=batch).goodput / vanilla
            for name, known in (("oracle-step", lengths), ("oracle-length", None))}


def micro_batch_gains(data_set: str, counts: Sequence[int], *, policy: str = "spin", **more) -> dict[int, float]:
    """Goodput with so many micro-batches over that with one."""
    goodput = {m: serve(data_set, "LLaMA-7B", policy, micro_batches=m, **more).goodput
               for m in dict.fromkeys((1, *counts))}
    return {m: goodput[m] / goodput[1] for m in counts}


def stages(data_set: str, drafter: str, batch: int = BATCH, requests: int = 200) -> dict[str, float]:
    """A step's parts with one micro-batch: seconds of "draft" and "verify", and the share of each that stays, however
    few requests there are: what a batch of one takes over what the whole takes."""
    whole, one = ({stage: float(np.median(seconds)) for stage, seconds in (
        ("draft", run.steps["draft"]), ("verify", run.steps["end"] - run.steps["begin"]))} for run in (
            serve(data_set, "LLaMA-7B", drafter, batch=n, requests=requests) for n in (batch, 1)))
    return whole | {f"{stage} fixed": min(1.0, one[stage] / whole[stage]) for stage in whole}


def heuristic_case(data_set: str, drafter: str, batch: int, counts: Sequence[int], **more) -> dict:
    """How the heuristic does against the best of ``counts`` in hindsight: what ``plots.system`` shows of
    it."""
    goodput = {m: serve(data_set, "LLaMA-7B", drafter, micro_batches=m, batch=batch, **more).goodput for m in counts}
    best = max(goodput, key=goodput.get)
    run = serve(data_set, "LLaMA-7B", drafter, micro_batches="auto", batch=batch, **more)
    ends = np.append([d.time for d in run.decisions[1:]], run.finished.max())
    spent: dict[int, float] = {}
    for decision, end in zip(run.decisions, ends):
        spent[decision.count] = spent.get(decision.count, 0.0) + end - decision.time
    chosen = max(spent, key=spent.get)
    return {"name": f"{data_set}, {drafter}, batch {batch}", "best": best, "chosen": chosen,
            "right": goodput.get(chosen, 0.0) / goodput[best], "share": run.goodput / goodput[best]}


def verification_latency(data_set: str, batches: Sequence[int], target: str = "LLaMA-7B", card: str = CARD,
                         steps: int = 40, seed: int = 0, hypothesis: str = "cached",
                         **lengths) -> dict[str, list[float]]:
    """Mean seconds of a verification by batch size: requests of the data set at random moments of their answers.
    ``lengths``: of :func:`texts`."""
    for batch in (*batches, steps):
        whole("verification_latency", 1, batch=batch)
    rec, rng = texts(data_set, 200, seed, **lengths), np.random.default_rng(seed)
    ways = {"padded, gathered": system(target, "padded", card, hypothesis=hypothesis),
            "padded, in place": system(target, "padded", card, False, hypothesis=hypothesis),
            "decomposed": system(target, "decomposed", card, hypothesis=hypothesis)}
    out: dict[str, list[float]] = {name: [] for name in ways}
    for batch in batches:
        rows = rng.integers(0, len(rec), (steps, batch))
        context = rec.prompts[rows] + (rng.random((steps, batch)) * rec.lengths[rows]).astype(int)
        for name, way in ways.items():
            out[name].append(float(np.mean([way.verify(row, np.full(batch, GAMMA)).seconds for row in context])))
    return out


def verification_memory(data_set: str, batches: Sequence[int], target: str = "LLaMA-7B", card: str = CARD,
                        seed: int = 0, hypothesis: str = "cached", **lengths) -> dict[str, list[float]]:
    """Bytes for weights and a batch whose requests have all reached their end, by batch size; "card": what the devices
    have. ``lengths``: of :func:`texts`."""
    for batch in batches:
        whole("verification_memory", 1, batch=batch)
    rec = texts(data_set, 200, seed, **lengths)
    final = (rec.prompts + rec.lengths + GAMMA).tolist()
    held = {strategy: [system(target, strategy, card, hypothesis=hypothesis).memory(final[:batch]) for batch in batches]
            for strategy in ("padded", "decomposed")}
    return held | {"card": [TENSOR_PARALLEL[target] * HARDWARE[card].memory] * len(batches)}
