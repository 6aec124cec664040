"""SPIN's selection at the paper's scale, against every fixed drafter: modelled, under two hypotheses.

The first rows ask whether "+ selection" keeps up with the best fixed drafter in hindsight, on every data set. The
others ask what might bring its gain over vanilla on CP to the published 1.45: places for a few requests per drafter, as
in the paper, more exploration, or another drafter for vanilla; and whether micro-batches of similar lengths would have
their best number at five.
"""

import numpy as np

from spin_core.lab.bench import Bar, Report, half_interval, positive
from spin_core.lab.bench.hypotheses import COUNTS
from spin_core.lab.lessons.cores import on_all_cores
from spin_core.lab.simulate import acceptance, paper
from spin_core.select import NONE

DESCRIPTION = "SPIN's selection at the paper's scale against every fixed drafter (modelled)"
HYPOTHESES, BATCHES = ("cached", "recompute"), (8, 32)
CHANGED = {"as it is": {}, "2 places per drafter": {"places": 2}, "4 places per drafter": {"places": 4},
           "4 slots of exploration": {"explore": 4}, "16 slots of exploration": {"explore": 16}}


def add_arguments(parser) -> None:
    parser.add_argument("--requests", type=positive, default=200,
                        help="of every run, at least 12 times the batch (default 200)")
    parser.add_argument("--seeds", type=positive, default=5, help="draws of the texts (default 5)")


def run(args) -> Report:
    seeds = range(args.seeds)
    settings = [(h, data, batch) for h in HYPOTHESES for data in acceptance.NAMES for batch in BATCHES]
    runs = on_all_cores(selections, {(*setting, seed): (*setting, seed) for setting in settings for seed in seeds},
                        args.requests)
    rows = [{"hypothesis": h, "data": data, "batch": batch} | compared([runs[h, data, batch, s] for s in seeds])
            for h, data, batch in settings]
    bars = [Bar(f"{row['hypothesis']}, {row['data']}, batch {row['batch']}: + selection over {row['best']}",
                row["over_best"], ">= 0.99") for row in rows]
    changed = on_all_cores(changes, {(h, s): (h, s) for h in HYPOTHESES for s in seeds}, args.requests)
    grouped = on_all_cores(by_length, {(data, by, s): (data, by, s) for data in ("Alpaca", "CP")
                                       for by in (False, True) for s in seeds}, args.requests)
    for h in HYPOTHESES:
        rows += [{"hypothesis": h, "data": "CP", "batch": paper.BATCH, "changed": change} |
                 spread("over_vanilla", [changed[h, s][change] for s in seeds]) for change in changed[h, 0]]
    for (data, by) in dict.fromkeys((data, by) for data, by, _ in grouped):
        gains = {m: np.mean([grouped[data, by, s][m] for s in seeds]) for m in COUNTS}
        rows.append({"hypothesis": "recompute", "data": data, "batch": 16, "micro_batches": max(gains, key=gains.get),
                     "changed": "micro-batches by length" if by else "micro-batches by arrival",
                     "gain_of_best": max(gains.values()), "gain_of_4": gains[4], "gain_of_9": gains[9]})
    return Report("select-paper", rows, bars, [
        f"modelled: LLaMA-7B on a {paper.CARD}, {args.seeds} draws of {args.requests} requests or 12 times the batch; "
        "padded verification; +-: 95 % of the mean over the draws",
        f"best: the fixed drafter with the most tokens per second in hindsight; vanilla: {paper.VANILLA} for all",
        "micro-batches: with 1.4B for all, in pieces; gains over one micro-batch"])


def selections(hypothesis: str, data: str, batch: int, seed: int, requests: int) -> dict[str, float]:
    """Goodput of every fixed drafter, of plain decoding and of SPIN's selection over padded batches."""
    how = dict(strategy="padded", batch=batch, requests=max(requests, 12 * batch), hypothesis=hypothesis, seed=seed)
    return {policy: paper.serve(data, "LLaMA-7B", policy, **how).goodput
            for policy in (*paper.pool(data), NONE, "spin")}


def compared(runs: list[dict[str, float]]) -> dict:
    """SPIN over the best fixed drafter, which is the best of the mean over the draws, and over others."""
    fixed = {name: np.mean([run[name] for run in runs]) for name in runs[0] if name != "spin"}
    best = max(fixed, key=fixed.get)
    return {"best": best, **spread("over_best", [run["spin"] / run[best] for run in runs]),
            "over_vanilla": float(np.mean([run["spin"] / run[paper.VANILLA] for run in runs])),
            "plain_over_vanilla": float(np.mean([run[NONE] / run[paper.VANILLA] for run in runs]))}


def changes(hypothesis: str, seed: int, requests: int) -> dict[str, float]:
    """"+ selection" over vanilla on CP: with each change of the selection, and over another drafter as vanilla."""
    how = dict(strategy="padded", requests=requests, hypothesis=hypothesis, seed=seed)

    def rate(policy: str, **more) -> float:
        return paper.serve("CP", "LLaMA-7B", policy, **more, **how).goodput

    fixed = {name: rate(name) for name in paper.pool("CP")}
    spin = {name: rate("spin", **options) for name, options in CHANGED.items()}
    return {name: value / fixed[paper.VANILLA] for name, value in spin.items()} | {
        f"over {name} as vanilla": spin["as it is"] / value for name, value in fixed.items() if name != paper.VANILLA}


def by_length(data: str, by: bool, seed: int, requests: int) -> dict[int, float]:
    """Gains of so many micro-batches, formed by length or by arrival, without a cache."""
    return paper.micro_batch_gains(data, COUNTS, policy="1.4B", batch=16, requests=requests, hypothesis="recompute",
                                   by_length=by, seed=seed)


def spread(name: str, values: list[float]) -> dict[str, float]:
    """The mean under ``name``, and half of its 95 % interval."""
    return {name: float(np.mean(values)), "+-": half_interval(values)}
