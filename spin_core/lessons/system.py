"""The exercises of the lesson on the whole system, and the cases that its figures run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from spin_core import figures
from spin_core.lessons.exercises import OPEN, Answer
from spin_core.simulate import paper
from spin_core.simulate.profiles import BYTES, DRAFTERS, HARDWARE, TARGETS, Hardware, Model

HEURISTIC = (("Alpaca", "68M", 8), ("Alpaca", "1.4B", 8), ("Alpaca", "1.4B", 32), ("CP", "1.4B", 32),
             ("CP", "1.4B", 64))
"""Data set, drafter and batch: who gains nothing from micro-batches, and who does."""


def floor(model: Model, card: Hardware, dtype: str = "fp16") -> float:
    """Seconds below which no pass can be: every weight is read once, at the peak bandwidth."""
    return model.read * BYTES[dtype] / card.bandwidth


def bounds(data_set: str, requests: int, target: str = "LLaMA-7B") -> dict[str, float]:
    """What each part of SPIN can bring at most over vanilla, by the model: were it perfect, and the others not there.

    "selection": every request has the drafter that is best for it, known beforehand, at the price of a pass that all
    share. "decomposition": verification without padding. "pipeline": drafting hides behind verification, or the other
    way round, and no fixed cost is paid twice. "together": the product of the three.
    """
    recording = paper.texts(data_set, requests)
    draft = {arm: paper.stages(data_set, arm, requests=requests)["draft"] for arm in DRAFTERS}
    ways = {}
    for strategy in ("padded", "decomposed"):
        steps = paper.serve(data_set, target, paper.VANILLA, strategy=strategy, requests=requests).steps
        ways[strategy] = float(np.median(steps["end"] - steps["begin"]))
    tokens = np.minimum(recording.accepted, paper.GAMMA) + 1.0
    mean = np.add.reduceat(tokens, recording.starts[:-1], axis=1) / recording.lengths      # per drafter and request
    step = np.array([draft[arm] + ways["padded"] for arm in recording.arms])
    seconds = recording.lengths * step[:, None] / mean
    vanilla = recording.arms.index(paper.VANILLA)
    d, v = draft[paper.VANILLA], ways["decomposed"]
    out = {"selection": float(seconds[vanilla].sum() / seconds.min(0).sum()),
           "decomposition": (d + ways["padded"]) / (d + v), "pipeline": (d + v) / max(d, v)}
    return out | {"together": float(np.prod(list(out.values())))}


def at_scale(data_set: str, batch: int, requests: int,
             policies: Sequence[str] = (*DRAFTERS, "none", "spin", "spin-full"),
             target: str = "LLaMA-7B") -> dict[str, float]:
    """Goodput of every fixed drafter, of plain decoding and of SPIN's selections, all over decomposed verification."""
    count = max(requests, 3 * batch)
    return {p: paper.serve(data_set, target, p, batch=batch, requests=count).goodput for p in policies}


def recorded(directory: str | Path | None = None) -> tuple[dict[str, dict[str, float]], dict[str, float], dict] | None:
    """What ``bench peers`` measured at batch 8 on the first machine of figures/data: goodput by workload and system,
    the ladder over vanilla on the mix, and where it was measured. None where it was not run."""
    paths = sorted((Path(directory or figures.default_directory()) / "data").glob("*/peers.json"))
    if not paths:
        return None
    report = json.loads(paths[0].read_text("utf-8"))
    case = [row for row in report["rows"] if row["batch"] == 8 and row["temperature"] == 0]
    fixed = [row for row in case if row["contender"] == "ours, fixed"]
    rows = {row["contender"]: row for row in case if row not in fixed}
    workloads = ("instructions", "personas", "chat", "mix")
    systems = {w: {"vanilla": rows["ours, vanilla"][w], "best fixed drafter": max(row[w] for row in fixed),
                   "SPIN": rows["ours, SPIN"][w]} for w in workloads}
    names = {"+ selection": "+ selection", "+ decomposition": "+ decomposition", "+ pipeline": "ours, SPIN"}
    ladder = {rung: rows[name]["mix"] / rows["ours, vanilla"]["mix"] for rung, name in names.items()}
    return systems, ladder, {k: report[k] for k in report if k not in ("name", "rows", "bars", "notes")}


def check_floor(solution: Callable) -> Answer:
    """Exercise 7.1: ``solution(parameters, bytes_per_value, bandwidth)`` is the least time of a pass, in
    seconds."""
    for model in (*TARGETS.values(), DRAFTERS["68M"]):
        for card in HARDWARE.values():
            if (wrong := _wrong(solution, floor(model, card), model.read, 2, card.bandwidth)) is not None:
                return Answer(*wrong(f"{model.name} on {card.name}"))
    return Answer("right", "Every weight crosses the bus once, however many rows there are. Compare with the "
                           "published times.")


def check_ridge(solution: Callable) -> Answer:
    """Exercise 7.2: ``solution(arithmetic, stream, bytes_per_value)``, in FLOP/s and bytes/s, is the number of rows
    from which a product takes longer than reading its weights."""
    for card in HARDWARE.values():
        for dtype in card.flops:
            arithmetic, size = card.arithmetic(dtype), BYTES[dtype]
            expected = arithmetic * size / (2 * card.stream)
            if (wrong := _wrong(solution, expected, arithmetic, card.stream, size)) is not None:
                return Answer(*wrong(f"{card.name}, {dtype}"))
    return Answer("right", "Up to there a drafted token is verified for free, and cutting the batch saves nothing.")


def _wrong(solution: Callable, expected: float, *given):
    """None if the solution gives what is expected (within 1 %), else what to say, as a function of where."""
    try:
        got = solution(*given)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return lambda where: ("wrong", f"{where}: it raised {said}")
    if got is None or got is ...:
        return lambda where: (OPEN.status, OPEN.message)
    if not isinstance(got, (int, float)) or abs(got - expected) > 0.01 * expected:
        return lambda where: ("wrong", f"{where}: {got} instead of about {expected:.3g}")
    return None
