"""Selection policies on recorded text: how close does each come to the best drafter of every request?

The test split's greedy answers and what every drafter would have done along them are recorded (``--record``), once
per pool of drafters; all policies are then replayed on the recording. Each seed serves the requests in an order of its
own. Seconds come from two sets of costs: passes as measured on the machine of the recording, and "memory-bound", where
a row more costs next to nothing, as on a GPU at small batches (modelled).
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spin_core.lab.bench import Bar, Report, half_interval, positive
from spin_core.files import check_writable
from spin_core.select import NONE, make
from spin_core.lab.simulate.oracle import Planned, oracle_request, oracle_steps
from spin_core.lab.simulate.recording import MAX_GAMMA, STORED, Recording, memory_bound
from spin_core.lab.simulate.replay import replay

DESCRIPTION = "selection policies replayed on recorded text, against the best drafter of every request"
BANDITS = ("spin", "spin-full", "greedy", "epsilon-greedy", "ucb", "exp3", "thompson", "hedge", "random")
COSTS = {"measured": lambda recording: recording, "memory-bound": memory_bound}
EXPLORE, FIRST, GROWTH, PRIOR = (0, 1, 2, 4), (4, 8, 32), (1.0, 2.0, 4.0), (0, 1, 4, 16, 64)
KAPPA, MEMORY = (1, 4, 8, 32), (200, 2000, 20000)


def add_arguments(parser) -> None:
    parser.add_argument("--record", metavar="OUT", nargs="?", const=str(STORED),
                        help="first record the drafters of today, into OUT (default: the stored recording)")
    parser.add_argument("--recording", metavar="FILE", default=str(STORED), help="replay this recording")
    parser.add_argument("--time", action="store_true", help="replay it with the passes timed anew, on this machine")
    parser.add_argument("--limit", type=positive,
                        help="with --record: prompts of each workload's test split (default all)")
    parser.add_argument("--max-new-tokens", type=positive, default=128, help="with --record: tokens of an answer")
    parser.add_argument("--repeats", type=positive, default=9, help="interleaved repeats of every timing")
    parser.add_argument("--seeds", type=positive, default=20,
                        help="orders of service, and seeds of the policies (default 20)")
    parser.add_argument("--batch", type=positive, default=8, help="requests served at once (default 8)")
    parser.add_argument("--sweep", action="store_true", help="also sweep the schedules and the priors")


def run(args) -> Report:
    if args.record:
        check_writable(Path(args.record))
    if args.record or args.time:
        from spin_core import zoo
        from spin_core.lab.bench.answers import record, timed

        family = zoo.load("smollm2")
    if args.record:
        record(family, args.limit, args.max_new_tokens, args.repeats).save(args.record)
    recording = Recording.load(args.record or args.recording)
    if args.time:
        recording = timed(recording, family, args.repeats)
    rows, bars, notes = [], [], [f"{len(recording)} requests, {recording.lengths.sum()} tokens, batch {args.batch}, "
                                 f"{args.seeds} seeds; recorded on {recording.about.get('cpu')}, "
                                 f"{recording.about.get('date')}; +-: 95 % of the mean over the seeds"]
    for costs, change in COSTS.items():
        trial = Trial(change(recording), args.batch, args.seeds)
        rows += [{"costs": costs} | row for row in trial.rows()]
        bars += trial.bars(costs)
        if args.sweep:
            rows += [{"costs": costs} | row for row in trial.sweep()]
        notes.append(f"{costs}: gamma " + ", ".join(f"{a} {g}" for a, g in trial.gammas.items()))
    notes.append("passes timed on this machine" if args.time or args.record else
                 "a selector's own time is this machine's, the steps it is a share of are the recording's: they are "
                 "comparable where both are the same machine (--time)")
    for batch, bound in ((8, .01), (256, .02)):
        share, seconds = thinking(recording, batch)
        rows.append({"costs": "measured", "policy": f"spin-full thinking, batch {batch}", "share_of_step": share})
        bars.append(Bar(f"selection and matching as a share of a step, batch {batch} ({seconds * 1e3:.2f} ms)", share,
                        f"<= {bound}"))
    return Report("select", rows, bars, notes)


def best_gammas(recording: Recording, batch: int) -> dict[str, int]:
    """By drafter the draft length with which it is fastest on the whole recording, as a fixed setting would be."""
    return {a: max(range(1, MAX_GAMMA + 1), key=lambda g: replay(
        recording, make(f"fixed:{a}", recording.arms, gamma=g), batch=batch).goodput) for a in recording.arms}


@dataclass
class Score:
    """Goodput by seed, and relative to oracle-request under the same order of service."""

    goodput: np.ndarray
    share: np.ndarray

    def row(self, policy: str) -> dict:
        return {"policy": policy, "goodput": self.goodput.mean(), "share_of_oracle": self.share.mean(),
                "+-": half_interval(self.share.tolist())}


class Trial:
    """All policies on one recording. Policies choose among the drafters that stand for themselves; composed ones
    are there as fixed arms, and for "spin, composed" and "spin-full, composed", which have them as arms too."""

    def __init__(self, recording: Recording, batch: int, seeds: int) -> None:
        self.whole, self.batch = recording, batch
        self.recording = recording.only(recording.drafters)
        everything = best_gammas(recording, batch)
        self.gammas = {a: everything[a] for a in (*recording.drafters, *recording.made_of_others)}
        self.orders = [np.random.default_rng(s).permutation(len(recording)) for s in range(seeds)]
        self.plan = oracle_request(self.recording, self.gammas, batch=batch)
        arms = [*self.recording.arms, NONE]
        self.oracle = np.array([replay(self.recording, Planned(arms, self.plan[order], gamma=self.gammas), batch=batch,
                                       order=order).goodput for order in self.orders])
        self.scores: dict[str, Score] = {}

    def play(self, policy: str, arms: tuple[str, ...], **options) -> Score:
        """A policy over ``arms``, all seeds. "spin-full" bounds its own lengths; others have the fixed settings'."""
        if policy.startswith("spin-full"):
            options = {"cost": self.whole.passes["target"]} | options
        else:
            options = {"gamma": {a: self.gammas[a] for a in arms}} | options
        runs = [replay(self.whole, make(policy, arms, seed=seed, **options), batch=self.batch, order=order).goodput
                for seed, order in enumerate(self.orders)]
        return Score(np.array(runs), np.array(runs) / self.oracle)

    def rows(self) -> Iterator[dict]:
        """Ceilings, fixed arms and policies."""
        drafters, composed = self.recording.arms, self.whole.made_of_others
        jobs = {f"fixed:{a}": (f"fixed:{a}", (a,)) for a in (*drafters, *composed)} | {"none": (f"fixed:{NONE}", ())}
        jobs |= {name: (name, drafters) for name in BANDITS}
        jobs |= {f"{name}, composed": (name, drafters + composed) for name in ("spin", "spin-full")}
        for name, (policy, arms) in jobs.items():
            self.scores[name] = self.play(policy, arms)
            yield self.scores[name].row(name)
        yield {"policy": "oracle-request", "goodput": self.oracle.mean(), "share_of_oracle": 1.0}
        for name, gammas in (("oracle-step", self.gammas), ("oracle-length", None)):
            goodput = oracle_steps(self.recording, gammas, batch=self.batch).goodput
            yield {"policy": name, "goodput": goodput, "share_of_oracle": goodput / self.oracle.mean()}

    def bars(self, costs: str) -> list[Bar]:
        """What we promised. "Above" is the lower end of the 95 % interval of the paired ratio."""
        fixed = {n: s for n, s in self.scores.items() if n == NONE or n.removeprefix("fixed:") in self.recording.arms}
        bars = [Bar(f"{costs}: {name}, share of oracle-request", float(self.scores[name].share.mean()), f">= {bound}")
                for name, bound in (("spin", .90), ("spin-full", .95))]
        best = max(fixed, key=lambda n: fixed[n].goodput.mean())
        for name in ("spin", "spin-full"):
            for other in (best, "greedy", "epsilon-greedy"):
                bars.append(Bar(f"{costs}: {name} over {other}", self._over(name, other), ">= 1.0"))
        if self.whole.made_of_others:
            bars += [Bar(f"{costs}: {name} with more arms over {name}", self._over(f"{name}, composed", name),
                         ">= 0.98") for name in ("spin", "spin-full")]
        composed = max((n for n in self.scores if n.removeprefix("fixed:") in self.whole.made_of_others),
                       key=lambda n: self.scores[n].goodput.mean(), default=None)
        if composed:
            bars.append(Bar(f"{costs}: spin-full over {composed}", self._over("spin-full", composed), ">= 1.0"))
        return bars

    def _over(self, name: str, other: str) -> float:
        ratio = self.scores[name].goodput / self.scores[other].goodput
        return float(ratio.mean() - (half_interval(ratio.tolist()) if len(ratio) > 1 else 0.0))

    def sweep(self) -> Iterator[dict]:
        """SPIN's schedule and prior, and the shrinkage and memory of full information."""
        drafters = self.recording.arms
        for explore, first, growth in itertools.product(EXPLORE, FIRST, GROWTH):
            if explore or (first, growth) == (FIRST[0], GROWTH[0]):     # without exploration the rest does not matter
                yield self.play("spin", drafters, explore=explore, first=first, growth=growth).row(
                    f"spin, {explore} of {first} x{growth:g}")
        for policy, options in [*(("spin", {"prior": p}) for p in PRIOR), *(("spin-full", {"kappa": k}) for k in KAPPA),
                                *(("spin-full", {"memory": m}) for m in MEMORY)]:
            yield self.play(policy, drafters, **options).row(
                f"{policy}, " + ", ".join(f"{k} {v}" for k, v in options.items()))


def thinking(recording: Recording, batch: int) -> tuple[float, float]:
    """Seconds of "spin-full" per step on this machine, as a share of the recorded machine's steps and as such.

    Half of the batch may have each model drafter, so that there is something to match.
    """
    served = recording.take(np.arange(max(len(recording), 2 * batch)) % len(recording))
    capacities = {a: max(1, batch // 2) for a in served.drafters}
    runs = [replay(served, make("spin-full", served.drafters, cost=served.passes["target"]), batch=batch,
                   capacities=capacities) for _ in range(2)]            # the first one warms up
    best = min(runs, key=lambda run: run.thinking)
    return best.thinking / best.wall, best.thinking / len(best.step_seconds)
