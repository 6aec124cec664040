"""What the published numbers imply: every published number under every hypothesis on what a pass computes.

Nothing is fitted: hypotheses (:mod:`spin_core.lab.simulate.hypotheses`), lengths of texts and acceptance are what they
are, and each modelled number is compared with the published one. The score of a hypothesis is the mean of |log
(modelled / published)|; the range over draws of the texts, and scores with other lengths, say how much that means.
Shares of the best drafter are shown but not scored: made-up acceptance was set to them under the first hypothesis.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from spin_core.lab.bench import Report, positive
from spin_core.lab.lessons.cores import on_all_cores
from spin_core.lab.results import figures
from spin_core.lab.simulate import acceptance, paper
from spin_core.lab.simulate.hypotheses import HYPOTHESES
from spin_core.lab.simulate.profiles import TARGETS

DESCRIPTION = "rival hypotheses on what the published system computes, judged by the published numbers"
STORED = Path("data") / "modelled" / "hypotheses.json"
PUBLISHED = {
    "verification, padded, ms": 529.21, "verification, decomposed, ms": 335.46, "SPIN over vanilla": 2.28,
    "SPIN over vanilla, Alpaca 7B": 2.34, "+ selection, CP 7B": 1.45, "+ decomposition, CP 7B": 1.81,
    "+ pipeline, CP 7B": 1.99, "+ selection, CP 30B": 1.79, "68M for all, tokens/s": 32.21, "SPIN, tokens/s": 62.33,
    "SPIN over greedy": 65.31 / 43.78, "lost to padding": 0.30, "gain of 4 micro-batches": 1.29,
    "best micro-batches, Alpaca": 5, "best micro-batches, CP": 3, "padded out of memory at batch": 32}
"""Scored. Tokens/s and SPIN over greedy: the setting is unknown, and taken to be the Mix on LLaMA-7B. Micro-batches: of
16 requests, with the drafter that has most to hide, 1.4B."""
SHOWN = {"265M is the best, Alpaca": 0.03, "265M is the best, CP": 0.40, "9 micro-batches are worse": 1,
         "13B on two cards, 30B on four": 1, "padded out of memory at batch, 16 GB": 32}
"""Not scored: set to, true or false, or another card."""
CLOSE = 1.25
COUNTS = (1, 2, 3, 4, 5, 7, 9)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
LENGTHS = {"as they are": {}, "half as long": {"scale": 0.5}, "twice as long": {"scale": 2.0},
           "less spread (0.4)": {"spread": 0.4}, "more spread (0.8)": {"spread": 0.8}}
MOVED = ("cached", "recompute", "recompute-all")        # whose scores are shown with other lengths


def add_arguments(parser) -> None:
    parser.add_argument("--requests", type=positive, default=60, help="of every simulated run (default 60)")
    parser.add_argument("--seeds", type=positive, default=3, help="draws of the texts (default 3)")


def run(args) -> Report:
    return judge(args.requests, args.seeds)


def judge(requests: int, seeds: int) -> Report:
    """Every quantity under every hypothesis, over so many draws of texts, and the scores."""
    names, shared = list(HYPOTHESES), dict(requests=requests)
    draws = on_all_cores(modelled, {(name, "as they are", seed): (name, seed) for seed in range(seeds)
                                    for name in names}, **shared)
    draws |= on_all_cores(moved, {(name, lengths, 0): (name, lengths) for name in MOVED for lengths in LENGTHS
                                  if LENGTHS[lengths]}, **shared)
    rows = []
    for name in names:
        found = [draws[name, "as they are", seed] for seed in range(seeds)]
        means = mean(found)
        rows += [{"hypothesis": name, "quantity": quantity, "published": published, "modelled": means[quantity],
                  "ratio": ratio(means[quantity], published), "low": least(found, quantity, min),
                  "high": least(found, quantity, max), "scored": quantity in PUBLISHED}
                 for quantity, published in (PUBLISHED | SHOWN).items()]
        rows.append({"hypothesis": name, "assumption": HYPOTHESES[name].assumption, **score(means)})
        if name in MOVED:
            rows += [{"hypothesis": name, "lengths": lengths, **score(draws[name, lengths, 0])}
                     for lengths in LENGTHS if LENGTHS[lengths]]
    return Report("hypotheses", rows, notes=[
        f"modelled on {paper.CARD}, {requests} requests a run; low and high: over {seeds} draws of the texts",
        "kind: modelled; nothing is fitted; an inference from published numbers, not a fact on the paper's code"])


def modelled(hypothesis: str, seed: int, requests: int, **lengths) -> dict[str, float | None]:
    """Every quantity of ``PUBLISHED`` and ``SHOWN`` by a hypothesis, from one draw of the texts; None: cannot run."""
    how = dict(hypothesis=hypothesis, seed=seed, **lengths)
    out: dict[str, float | None] = dict.fromkeys(PUBLISHED | SHOWN)

    def rate(data: str, policy: str, target: str = "LLaMA-7B", **more) -> float:
        return paper.serve(data, target, policy, requests=requests, **more, **how).goodput

    def rung(name: str, data: str, target: str = "LLaMA-7B") -> float:
        return paper.rung(name, data, target, requests=requests, **how).goodput

    ratios, fit = {}, True
    for target in TARGETS:
        try:
            paper.system(target, hypothesis=hypothesis)
        except ValueError:                      # its weights do not fit on the paper's cards
            fit = False
            continue
        for data in acceptance.NAMES:
            ratios[target, data] = rung("vanilla", data, target), rung("+ pipeline", data, target)
    out["13B on two cards, 30B on four"] = float(fit)
    out["SPIN over vanilla"] = float(np.mean([spin / vanilla for vanilla, spin in ratios.values()]))
    vanilla = {data: ratios["LLaMA-7B", data][0] for data in acceptance.NAMES}
    whole = {data: ratios["LLaMA-7B", data][1] for data in acceptance.NAMES}
    out["SPIN over vanilla, Alpaca 7B"] = whole["Alpaca"] / vanilla["Alpaca"]
    for name in list(paper.RUNGS)[1:]:
        out[f"{name}, CP 7B"] = (whole["CP"] if name == "+ pipeline" else rung(name, "CP")) / vanilla["CP"]
    if ("LLaMA-30B", "CP") in ratios:
        out["+ selection, CP 30B"] = rung("+ selection", "CP", "LLaMA-30B") / ratios["LLaMA-30B", "CP"][0]
    out["68M for all, tokens/s"], out["SPIN, tokens/s"] = vanilla["Mix"], whole["Mix"]
    out["SPIN over greedy"] = whole["Mix"] / rate("Mix", "greedy", micro_batches="auto")
    out["lost to padding"] = 1 - float(np.mean([vanilla[data] / rate(data, paper.VANILLA) for data in vanilla]))
    for data in ("Alpaca", "CP"):
        gains = paper.micro_batch_gains(data, COUNTS, policy="1.4B", batch=16, requests=requests, **how)
        out[f"best micro-batches, {data}"] = float(max(gains, key=gains.get))
        if data == "Alpaca":
            out["gain of 4 micro-batches"] = gains[4]
            out["9 micro-batches are worse"] = float(gains[9] < max(gains.values()))
        out[f"265M is the best, {data}"] = paper.best_shares(paper.texts(data, 200, seed, **lengths),
                                                             hypothesis=hypothesis)["265M"]
    latency = paper.verification_latency("Alpaca", (16,), **how)
    out["verification, padded, ms"] = latency["padded, gathered"][0] * 1e3
    out["verification, decomposed, ms"] = latency["decomposed"][0] * 1e3
    for card, name in ((paper.CARD, ""), ("V100-16GB", ", 16 GB")):
        try:
            held = paper.verification_memory("Alpaca", BATCHES, card=card, **how)
        except ValueError:
            continue
        over = [batch for batch, used, there in zip(BATCHES, held["padded"], held["card"]) if used > there]
        out[f"padded out of memory at batch{name}"] = float(over[0] if over else 2 * BATCHES[-1])
    return out


def moved(hypothesis: str, lengths: str, requests: int) -> dict[str, float | None]:
    """The same with other lengths of the texts."""
    return modelled(hypothesis, 0, requests, **LENGTHS[lengths])


def mean(draws: list[Mapping[str, float | None]]) -> dict[str, float | None]:
    return {q: None if any(d[q] is None for d in draws) else float(np.mean([d[q] for d in draws])) for q in draws[0]}


def least(draws: list[Mapping[str, float | None]], quantity: str, which) -> float | None:
    return None if any(d[quantity] is None for d in draws) else which(d[quantity] for d in draws)


def ratio(value: float | None, published: float) -> float | None:
    return value / published if value else None


def score(means: Mapping[str, float | None]) -> dict[str, float | int]:
    """The mean of |log (modelled / published)| over what the hypothesis can run, and how many are within 25 %."""
    logs = [abs(math.log(max(means[q], 1e-2) / published)) for q, published in PUBLISHED.items()
            if means[q] is not None]
    return {"score": float(np.mean(logs)), "within": sum(x <= math.log(CLOSE) for x in logs), "of": len(PUBLISHED)}


def stored(directory: str | Path | None = None) -> dict | None:
    """The stored report, if there is one."""
    path = Path(directory or figures.default_directory()) / STORED
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def table(report: Mapping) -> dict[str, dict[str, dict]]:
    """``[quantity][hypothesis]``: the rows of a report that compare with published numbers."""
    out: dict[str, dict[str, dict]] = {}
    for row in report["rows"]:
        if "quantity" in row:
            out.setdefault(row["quantity"], {})[row["hypothesis"]] = row
    return out


def scores(report: Mapping) -> dict[str, dict]:
    """By hypothesis its assumption and its score."""
    return {row["hypothesis"]: row for row in report["rows"] if "assumption" in row}


def is_close(row: Mapping) -> bool:
    """Whether a scored modelled number is within 25 % of the published one."""
    return bool(row["scored"] and row["ratio"] and abs(math.log(row["ratio"])) <= math.log(CLOSE))
