"""Lesson 7: the cases that its figures run, and what the benchmarks recorded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spin_core.lab.bench import names
from spin_core.lab.results.stored import newest, stored
from spin_core.lab.simulate import paper
from spin_core.lab.simulate.profiles import BYTES, DRAFTERS, Hardware, Model
from spin_core.workloads import NAMES as WORKLOADS

HEURISTIC = (("Alpaca", "68M", 8), ("Alpaca", "1.4B", 8), ("Alpaca", "1.4B", 32), ("CP", "1.4B", 32),
             ("CP", "1.4B", 64))
"""Data set, drafter and batch: some gain nothing from micro-batches, some do."""

LADDER = ("plain", *paper.RUNGS)
BESIDE = ("plain", "best fixed drafter", *paper.RUNGS)
"""The same with the best fixed drafter in hindsight."""
LADDER_NAMES = {names.PLAIN: "plain", names.FIXED: "best fixed drafter", names.SPIN: "+ pipeline",
                names.WHOLE: "+ pipeline", **{name: name.removeprefix("ours, ") for name in names.RUNGS}}
"""What the benchmarks call the systems -> what the lesson does."""
EMBEDDED, SHAPE = "embedded models", "LLaMA-7B shape"
"""What was measured: how the names of :class:`Recorded` begin."""


def floor(model: Model, card: Hardware, dtype: str = "fp16") -> float:
    """Seconds below which no pass can be: every weight is read once, at the peak bandwidth."""
    return model.read * BYTES[dtype] / card.bandwidth


def systems(hypothesis: str, target: str, data_set: str, **much) -> dict[str, float]:
    """Goodput of vanilla, of the best fixed drafter in hindsight, and of SPIN, by a hypothesis."""
    fixed = paper.fixed(data_set, target, hypothesis=hypothesis, **much)
    fixed.pop("none")
    return {"vanilla": next(iter(fixed.values())), "best fixed drafter": max(fixed.values()),
            "SPIN": paper.climbed(data_set, target, hypothesis=hypothesis, **much)}


def remains(requests: int) -> dict[str, dict[str, float]]:
    """What is left of SPIN with a cache, by setting: over vanilla, and over the best fixed drafter."""
    out = {}
    for setting, how in {"as in the paper": {}, "batch 32": {"batch": 32}, "texts four times as long": {"scale": 4.0},
                         "both": {"batch": 32, "scale": 4.0}}.items():
        found = [systems("cached", "LLaMA-7B", data, requests=max(requests, 3 * how.get("batch", 0)), **how)
                 for data in ("Alpaca", "CP")]
        out[setting] = {name: float(np.mean([s["SPIN"] / s[name] for s in found]))
                        for name in ("vanilla", "best fixed drafter")}
    return out


def bounds(data_set: str, requests: int) -> dict[str, float]:
    """What SPIN can bring at most over vanilla with LLaMA-7B, by the model: each part, were it perfect and alone, and
    all of them together.

    "selection": every request has the drafter that is best for it, known beforehand, at the price of a pass that all
    share. "decomposition": verification without padding. "pipeline": drafting hides behind verification, or the other
    way round, and no fixed cost is paid twice. "together": all three at once, which is more than their product, as
    drafting that is hidden makes larger drafters the best for many requests.
    """
    recording = paper.texts(data_set, requests)
    draft = {arm: paper.stages(data_set, arm, requests=requests)["draft"] for arm in DRAFTERS}
    ways = {}
    for strategy in ("padded", "decomposed"):
        steps = paper.serve(data_set, "LLaMA-7B", paper.VANILLA, strategy=strategy, requests=requests).steps
        ways[strategy] = float(np.median(steps["end"] - steps["begin"]))
    tokens = np.minimum(recording.accepted, paper.GAMMA) + 1.0
    mean = np.add.reduceat(tokens, recording.starts[:-1], axis=1) / recording.lengths      # per drafter and request
    step = np.array([draft[arm] + ways["padded"] for arm in recording.arms])
    seconds = recording.lengths * step[:, None] / mean
    vanilla = recording.arms.index(paper.VANILLA)
    d, v = draft[paper.VANILLA], ways["decomposed"]
    out = {"selection": float(seconds[vanilla].sum() / seconds.min(0).sum()),
           "decomposition": (d + ways["padded"]) / (d + v), "pipeline": (d + v) / max(d, v)}
    hidden = np.maximum([draft[arm] for arm in recording.arms], v)[:, None]
    return out | {"together": float(seconds[vanilla].sum() / (recording.lengths * hidden / mean).min(0).sum())}


def at_scale(data_set: str, batch: int, requests: int,
             policies: Sequence[str] = (*DRAFTERS, "none", "greedy", "epsilon-greedy", "spin", "spin-full"),
             hypothesis: str = "cached") -> dict[str, float]:
    """Goodput of every fixed drafter, of plain decoding, of SPIN's rivals and of its selections, all over decomposed
    verification."""
    count = _enough(requests, batch)
    return {p: paper.serve(data_set, "LLaMA-7B", p, batch=batch, requests=count, hypothesis=hypothesis).goodput
            for p in policies}


def ceilings_at_scale(data_set: str, batch: int, requests: int) -> dict[str, float]:
    """What the oracles of single steps reach over vanilla's drafter on the texts of :func:`at_scale`."""
    return paper.selection_ceilings(data_set, _enough(requests, batch), batch)


def _enough(requests: int, batch: int) -> int:
    return max(requests, 3 * batch)         # else the batch is full for a short while only


@dataclass(frozen=True)
class Recorded:
    """What one machine measured of the whole system at one ``batch``: ``rates[workload][system]`` in tokens/s.

    Systems are rungs of ``LADDER`` and "best fixed drafter". Only what was measured is there.
    """

    name: str
    batch: int
    rates: dict[str, dict[str, float]]
    origin: dict

    @property
    def workload(self) -> str:
        """The one that ladders are shown for: the mix, if it was measured."""
        return "mix" if "mix" in self.rates else next(iter(self.rates))

    def systems(self) -> dict[str, dict[str, float]]:
        """By workload the tokens/s of vanilla, of the best fixed drafter and of SPIN, as far as they were measured."""
        wanted = {"vanilla": "vanilla", "best fixed drafter": "best fixed drafter", "SPIN": "+ pipeline"}
        found = {workload: {name: rates[system] for name, system in wanted.items() if system in rates}
                 for workload, rates in self.rates.items()}
        return {workload: rates for workload, rates in found.items() if rates}

    def over(self, base: str, rungs: Sequence[str] = LADDER) -> dict[str, float]:
        """Goodput of every one of ``rungs`` over that of ``base``; nothing where ``base`` was not measured."""
        rates = self.rates[self.workload]
        return {rung: rates[rung] / rates[base] for rung in rungs if rung in rates} if base in rates else {}


def recorded(directory: str | Path | None = None) -> list[Recorded]:
    """What ``bench peers`` (greedy, else its lowest temperature) and the section "system" of ``bench gpu`` left in
    figures/data, by machine and batch."""
    out = []
    for found in stored("peers", directory=directory):
        for batch in sorted({row["batch"] for row in found.rows}):
            rows = [row for row in found.rows if row["batch"] == batch]
            coldest = min(row["temperature"] for row in rows)
            rates: dict[str, dict[str, float]] = {}
            for row in rows:
                system = LADDER_NAMES.get(row["contender"])
                if system and row["temperature"] == coldest:
                    for workload in WORKLOADS:
                        if workload in row:
                            here = rates.setdefault(workload, {})
                            here[system] = max(row[workload], here.get(system, 0.0))
            how = f", temperature {coldest:g}" if coldest else ""
            out.append(Recorded(f"{EMBEDDED}, {found.machine}{how}", batch, rates, found.origin))
    for found in stored("system", directory=directory):
        for batch in sorted({row["batch"] for row in found.rows}):
            rates = {LADDER_NAMES.get(row["rung"], row["rung"]): row["tokens_per_s"]
                     for row in found.rows if row["batch"] == batch}
            out.append(Recorded(f"{SHAPE}, {found.machine}", batch, {"recorded answers": rates}, found.origin))
    return [one for one in out if one.rates]


GAIN = ("python -m spin_core bench peers --plain --workloads mix --rounds 5 --prompts 12 "
        "--batch 1 2 4 8 16 32 --json figures/data/MACHINE/plain.json")
"""Measures what :func:`gain_by_batch` reads."""


def gain_by_batch(directory: str | Path | None = None
                  ) -> tuple[dict[float, dict[int, dict]], dict[int, float], dict] | None:
    """What ``GAIN`` measured last: SPIN's rows ("over_plain", with its 95 % interval) by temperature and batch, the
    seconds of a step of plain decoding by batch, and the provenance. None where no machine has stored it."""
    found = newest("plain", directory)
    if found is None:
        return None
    gains: dict[float, dict[int, dict]] = {}
    for row in found.rows:
        if row["contender"] == names.SPIN:
            gains.setdefault(row["temperature"], {})[row["batch"]] = row
    step = {row["batch"]: row["batch"] / row["tokens_per_s"] for row in found.rows
            if row["contender"] == names.PLAIN and row["temperature"] == min(gains)}
    return gains, step, found.origin


def ridge(step: Mapping[int, float]) -> float:
    """The batch at which a step of plain decoding begins to wait for the arithmetic: where the line through the two
    largest batches of ``step``, seconds by batch, is as high as the step of the smallest batch."""
    *_, (less, before), (most, after) = sorted(step.items())
    per_row = (after - before) / (most - less)
    return most - (after - step[min(step)]) / per_row


def like_the_paper(found: Sequence[Recorded]) -> list[Recorded]:
    """Of each name the one whose batch is nearest to the paper's."""
    nearest: dict[str, Recorded] = {}
    for one in sorted(found, key=lambda one: abs(one.batch - paper.BATCH)):
        nearest.setdefault(one.name, one)
    return [one for one in found if one is nearest[one.name]]
