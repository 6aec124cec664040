"""Lesson 9: what the throughput model says at any setting, and what our family measures."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import brentq

from spin_core import theory
from spin_core.engine import Engine
from spin_core.lab.bench import names
from spin_core.lab.bench import spire as bench
from spin_core.lab.results.stored import stored
from spin_core.lab.simulate import spire
from spin_core.lab.simulate.recording import Recording
from spin_core.request import SamplingParams

CONTEXTS = [2 ** n for n in range(4, 18)]
LIVE_BATCH = 8


def tau(system: spire.System, context: int, drafted: int) -> float:
    """Tokens per verification when ``drafted`` tokens are drafted: published at 4; else from the acceptance rate that
    explains the published number if every token is accepted alike."""
    known = system.tau[min(system.tau, key=lambda length: abs(length - context))]
    if drafted == spire.DRAFTED:
        return known
    alpha = brentq(lambda alpha: theory.expected_tokens(alpha, spire.DRAFTED) - known, 0, 1)
    return float(theory.expected_tokens(alpha, drafted))


def multipliers(batch: int, context: int, drafted: int = spire.DRAFTED, window: int | None = None,
                hoi: float = spire.HOI) -> dict[str, float]:
    """Throughput over plain decoding of the three systems."""
    return {s.name: spire.multiplier(s, batch, context, tau=tau(s, context, drafted), drafted=drafted, hoi=hoi,
                                     window=window) for s in spire.SYSTEMS}


def roofline(batch: int, context: int, drafted: int = spire.DRAFTED, window: int | None = None,
             hoi: float = spire.HOI) -> dict[str, spire.Pass]:
    """The passes that the three systems consist of."""
    out = {}
    for system in spire.SYSTEMS:
        plain, draft, verify = spire.passes(system, batch, context, drafted=drafted, hoi=hoi, window=window)
        out |= {"target, 1 token": plain, f"target, {drafted + 1} tokens": verify, f"{system.name} draft": draft}
    return out


def costs(batch: int, contexts: Sequence[int] = CONTEXTS, window: int | None = None) -> dict[str, list[float]]:
    """MagicDec's analysis of self-speculation, by context: draft / plain, verify / plain, and the multiplier."""
    out: dict[str, list[float]] = {"draft": [], "verify": [], "multiplier": []}
    for context in contexts:
        plain, draft, verify = (p.time for p in spire.passes(spire.MAGICDEC, batch, context, window=window))
        out["draft"].append(draft / plain)
        out["verify"].append(verify / plain)
        out["multiplier"].append(spire.multiplier(spire.MAGICDEC, batch, context, window=window))
    return out


def acceptance(family, group: str, windows: Sequence[str], context: int, prompts: int, max_new_tokens: int,
               gamma: int = 4) -> list[dict]:
    """The target drafting for itself on a sparse cache, on ``prompts`` of a group of ``bench spire``'s, of about
    ``context`` tokens: per window what that benchmark tells, greedy, from one engine each."""
    texts = bench.texts(family, group, prompts, context)
    rows = []
    for window in windows:
        engine = Engine(family, f"sparse:target:{window}", gamma, max_batch=prompts, pipeline="off")
        engine.generate(texts, SamplingParams(max_new_tokens=max_new_tokens))
        rows.append({"texts": group, "window": window, "prompt_tokens": round(sum(map(len, texts)) / len(texts)),
                     **bench.agreement(engine)})
    return rows


def stored_acceptance() -> tuple[list[dict], dict] | None:
    """The same as ``bench spire`` measured it, and where; None if no machine has stored it."""
    return _spire("texts")


def measured_ladder() -> tuple[list[dict], dict] | None:
    """The trained rungs that a machine has recorded, and where they are from; None if none has."""
    return _spire("rung")


def _spire(key: str) -> tuple[list[dict], dict] | None:
    """The rows of ``bench spire`` that have the key."""
    found = stored("spire", lambda row: key in row)
    return (found[0].rows, found[0].origin) if found else None


def predicted(recording: Recording, drafter: str, batch: int, gamma: int, tau: float, drafted: float) -> float:
    """The throughput model on measured costs: ``tau / ((gamma draft + verify) / plain)``, every pass as long as it was
    when ``recording`` was made. ``drafted`` tokens per request and step, on average, are verified; a drafter that looks
    up needs one pass for all of them."""
    plain, verify = recording.passes["target"]([batch, batch * (1 + drafted)])
    passes = 1 if drafter.split("+")[-1] in recording.lookups else gamma
    return float(tau * plain / (passes * recording.passes[drafter](batch) + verify))


def our_family(batch: int = LIVE_BATCH, gamma: int = 2, directory: str | Path | None = None) -> tuple[list[dict], dict]:
    """The throughput model on our family beside what was measured: a row for each drafter, and the provenance of the
    measurement.

    "modelled": from the tokens per verification that ``bench drafters`` counted over all texts. Where the engine was
    timed at that ``batch`` and ``gamma`` on the machine of the recorded costs (``bench peers``),
    "measured" is its speed-up over plain decoding, and "own" what the model says with the tokens per
    verification of that very run.
    """
    recording, out = Recording.load(), []
    counted = stored("drafters", lambda row: row["workload"] == "mix", directory)
    runs, origin = _timed(recording, batch, gamma, directory)
    for row in counted[0].rows if counted else ():
        name = row["drafter"]
        if name in recording.arms:
            drafted = float(np.minimum(recording.proposed[recording.arms.index(name)], gamma).mean())
            found = {"drafter": name, "modelled": predicted(recording, name, batch, gamma, row[f"tau{gamma}"], drafted)}
            if name in runs:
                run = runs[name]
                tau, acceptance = run["tokens_per_verification"], run["acceptance"]
                drafted = (tau - 1) / acceptance if acceptance else 0.0
                found |= {"own": predicted(recording, name, batch, gamma, tau, drafted), "measured": run["vs_plain"]}
            out.append(found)
    return out, origin


def _timed(recording: Recording, batch: int, gamma: int, directory) -> tuple[dict[str, dict], dict]:
    """Rows with "vs_plain" by drafter, each served alone, greedily, on the machine of the recording, and their
    provenance: of ``bench peers``."""
    for found in stored("peers", lambda row: row["temperature"] == 0 and row["batch"] == batch, directory):
        plain = [row["tokens_per_s"] for row in found.rows if row["contender"] == names.PLAIN]
        rows = {row["drafter"]: row | {"vs_plain": row["tokens_per_s"] / plain[0]} for row in found.rows
                if plain and row["contender"] == names.FIXED and row["gamma"] == gamma}
        if rows and found.origin.get("cpu") == recording.about["cpu"]:
            return rows, found.origin
    return {}, {}
