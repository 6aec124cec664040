"""What the lesson on selection measures by replay."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy import ndarray

from spin_core.lab.bench import names
from spin_core.lab.lessons.cores import on_all_cores
from spin_core.lab.results.stored import stored
from spin_core.select import NONE, make
from spin_core.lab.simulate.oracle import Planned, oracle_request
from spin_core.lab.simulate.recording import Recording
from spin_core.lab.simulate.replay import Replay, replay
from spin_core.lab.simulate.synthetic import synthetic

DISTRIBUTIONS = {"prose": {"reads": .75, "copies": .25}, "code": {"reads": .40, "copies": .85}}
COSTS = {"reads": .04, "copies": .03}
LIVE = {"spin": names.SPIN, "spin-full": "ours, spin-full"}     # policies of the replay, contenders of `bench peers`


def play(recording: Recording, policy: str, gammas: Mapping[str, int], *, seed: int = 0,
         order: Sequence[int] | None = None, batch: int = 8, capacities: Mapping[str, int] | None = None,
         **options) -> Replay:
    """One policy on one recording. "spin-full" finds its lengths itself, from the recording's profile of costs."""
    own = {"cost": recording.passes["target"]} if policy == "spin-full" else {"gamma": gammas}
    return replay(recording, make(policy, recording.arms, seed=seed, **own, **options), batch=batch, order=order,
                  capacities=capacities)


def ceiling(recording: Recording, gammas: Mapping[str, int], *, order: Sequence[int] | None = None, batch: int = 8,
            capacities: Mapping[str, int] | None = None) -> tuple[ndarray, Replay]:
    """The best arm of every request ``[R]`` in hindsight, and the replay in which each has it."""
    plan = oracle_request(recording, gammas, batch=batch)
    ordered = plan if order is None else plan[np.asarray(order)]
    return plan.argmax(1), replay(recording, Planned([*recording.arms, NONE], ordered, gamma=gammas), batch=batch,
                                  order=order, capacities=capacities)


def seconds_lost(run: Replay, oracle: Replay) -> tuple[ndarray, ndarray]:
    """Regret: after so many tokens written, how many seconds later than the oracle, which served in the same order.

    It ends with the last full batch: what comes behind is an emptying house.
    """
    (x, y), (known, best) = ((np.bincount(r.step, r.emitted).cumsum(), r.step_seconds.cumsum()) for r in (run, oracle))
    sizes = np.bincount(run.step)
    full = np.flatnonzero(sizes == sizes.max())[-1] + 1
    return x[:full], y[:full] - np.interp(x[:full], known, best)


def endless(policies: Sequence[str], steps: int, seeds: int) -> tuple[dict[str, tuple[ndarray, ndarray]], float]:
    """Tokens lost on one request that goes on and on, by steps, mean over ``seeds``; and the theory's slope.

    Two drafters, one right with 75 % of its tokens, the other with 60 %. A step counts with the tokens that its drafter
    is expected to bring, not with those that it happened to bring: always asking the better drafter loses nothing,
    and the luck of the text is left out. What the step took counts as it was, catching up included.

    Lai and Robbins: a policy that learns must try the worse arm about 2 var / gap^2 times per factor e of steps; each
    try loses gap tokens per second for the seconds of a step.
    """
    seen = on_all_cores(_lost, {(p, seed): (p, steps, seed) for p in policies for seed in range(seeds)})
    curves = {p: [seen[p, seed][0] for seed in range(seeds)] for p in policies}
    slope = seen[policies[-1], seeds - 1][1]
    x = np.arange(1, min(len(c) for many in curves.values() for c in many) + 1)
    return {p: (x, np.mean([c[:len(x)] for c in many], 0)) for p, many in curves.items()}, slope


def _lost(policy: str, steps: int, seed: int) -> tuple[ndarray, float]:
    """Tokens that a policy has lost by steps, and the theory's slope for that text."""
    gamma = 4
    text = synthetic({"text": {"good": .75, "poor": .60}}, {"good": .04, "poor": .04}, ["text"], tokens=4 * steps,
                     spread=1e6, prompt=1, seed=seed)
    emitted = 1 + np.minimum(text.accepted, gamma)
    expected = np.append(emitted.mean(1), 1.0)              # by arm; the last speculates not at all
    step = float(text.passes["target"](1 + gamma) + gamma * text.passes["good"](1))
    options = {"prior": 0} if policy == "spin" else {}
    run = replay(text, make(policy, text.arms, gamma=gamma, seed=seed, **options), batch=1)
    lost = np.cumsum(run.seconds * expected[0] / step - expected[run.arm])[:steps]
    return lost, float(2 * emitted[1].var() / (expected[0] - expected[1]))


def live(batch: int = 8, directory: str | Path | None = None) -> dict[str, dict[str, float]]:
    """What ``bench peers`` measured where requests were really served, by machine: times our plain decoding on the mix,
    greedily, by the names of the replay."""
    out: dict[str, dict[str, float]] = {}
    for found in stored("peers", lambda row: row["temperature"] == 0 and row["batch"] == batch, directory):
        rows = [row for row in found.rows if "mix" in row]
        rates = {row["contender"]: row["mix"] for row in rows if row["contender"] != names.FIXED}
        if plain := rates.get(names.PLAIN):
            fixed = {f"fixed:{row['drafter']}": row["mix"] / plain for row in rows if row["contender"] == names.FIXED}
            out[found.machine] = fixed | {name: rates[one] / plain for name, one in LIVE.items() if one in rates}
    return out


def stored_goodput(policies: Sequence[str], directory: str | Path | None = None) \
        -> tuple[dict[str, tuple[float, float]], dict]:
    """Tokens per second and half of the 95 % interval by policy, ceilings included, and the provenance as a series
    has it: of a stored ``bench select`` (all recorded requests, many orders of service) that knows all ``policies``;
    else nothing."""
    for found in stored("select", lambda row: row["costs"] == "measured" and "goodput" in row, directory):
        rows = {f"fixed:{NONE}" if row["policy"] == NONE else row["policy"]: row
                for row in found.rows}
        if set(policies) <= set(rows):
            return {name: (row["goodput"], row["goodput"] * (row.get("+-") or 0) / row["share_of_oracle"])
                    for name, row in rows.items()}, {"provenance": found.origin}
    return {}, {}


def late_share(run: Replay, best: ndarray) -> float:
    """How often a request has its ``best [R]`` arm in the second half of its steps, mean over requests."""
    return float(np.mean([(arms[len(arms) // 2:] == best[request]).mean()
                          for request in range(len(best)) for arms in [run.arm[run.request == request]]]))


def choice_map(run: Replay, steps: int) -> ndarray:
    """The arm of each request at each of its first ``steps`` steps, ``[R, steps]``; -1 where it had ended."""
    made = pd.DataFrame({"request": run.request, "arm": run.arm})
    made["step"] = made.groupby("request").cumcount()
    table = made.pivot(index="request", columns="step", values="arm").reindex(columns=range(steps))
    return table.fillna(-1).to_numpy(int)


def shifting(requests: int, shift: bool, seed: int = 0) -> Recording:
    """A made-up workload: prose and code in turn, or first prose, then code."""
    half = requests // 2
    order = ["prose"] * half + ["code"] * (requests - half) if shift else ["prose", "code"] * half
    return synthetic(DISTRIBUTIONS, COSTS, order, tokens=60, seed=seed)


def window(run: Replay, count: int = 24) -> tuple[ndarray, ndarray, ndarray]:
    """A replay in ``count`` windows of steps: tokens written by their ends, goodput, arms' shares ``[count, A]``."""
    edges = np.linspace(0, len(run.step_seconds), count + 1).astype(int)
    inside = np.clip(np.searchsorted(edges, run.step, side="right") - 1, 0, count - 1)
    tokens = np.bincount(inside, run.emitted, count)
    seconds = np.add.reduceat(run.step_seconds, np.minimum(edges[:-1], len(run.step_seconds) - 1))
    shares = np.zeros((count, len(run.arms)))
    np.add.at(shares, (inside, run.arm), 1)
    return tokens.cumsum(), tokens / seconds, shares / shares.sum(1, keepdims=True).clip(1)
