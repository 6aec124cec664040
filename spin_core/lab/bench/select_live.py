"""Selection live: policies against every fixed drafter, served by the engine on this machine, in turns of a few steps.

All contenders answer the same prompts greedily. Rates are emitted tokens per second of their own turns: a slow moment
of the machine hits everybody. Ratios are taken within a round, and their medians shown. The best fixed drafter is the
best of all drafters and draft lengths in hindsight: after one round all but the fastest few stand back, which leaves
time for more rounds between those that are close. Policies serve as a service would: what they learn in one round they
keep.
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field

from spin_core.lab.bench import Bar, Report, positive
from spin_core.lab.bench.contenders import in_turns
from spin_core.engine import Engine
from spin_core.request import Request, SamplingParams
from spin_core.select import make

DESCRIPTION = "live goodput of selection policies against every fixed drafter, and what selecting costs"
POLICIES = ("spin", "spin-full")


def add_arguments(parser) -> None:
    parser.add_argument("--batch", type=positive, default=8, help="requests served at once (default 8)")
    parser.add_argument("--prompts", type=positive, default=24,
                        help="prompts of the workload's test split (default 24)")
    parser.add_argument("--max-new-tokens", type=positive, default=64)
    parser.add_argument("--gammas", type=positive, nargs="+", default=[2, 4],
                        help="draft lengths of fixed drafters (default 2 4)")
    parser.add_argument("--arms", nargs="+", help="the pool (default: all drafters, ngram, and ngram with the first)")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), help="(default spin spin-full)")
    parser.add_argument("--repeats", type=positive, default=3, help="rounds after the warm-up (default 3)")
    parser.add_argument("--finalists", type=positive, default=3,
                        help="fixed drafters that serve in more than one round (default 3)")
    parser.add_argument("--workload", default="mix")
    parser.add_argument("--device", default="cpu")


@dataclass
class Contender:
    """A way to serve, and what it came to in each round after the warm-up."""

    name: str
    gamma: int | None
    engine: Engine
    rates: list[float] = field(default_factory=list)
    warm_up: float = 0.0
    texts: list[list[int]] = field(default_factory=list)
    seconds: Counter = field(default_factory=Counter)       # by phase, of all rounds
    drafters: Counter = field(default_factory=Counter)      # verifications by drafter
    counts: Counter = field(default_factory=Counter)

    @property
    def fixed(self) -> bool:
        return self.engine.selection is None

    def book(self, requests: list[Request], seconds: float) -> None:
        """Write down a round; the first is the warm-up."""
        rate = sum(len(r.output_ids) for r in requests) / seconds
        self.texts = [r.output_ids for r in requests]
        if not self.warm_up:
            self.warm_up = rate
            return
        self.rates.append(rate)
        metrics = self.engine.trace.metrics()
        self.seconds.update(metrics["seconds"])
        self.counts.update({k: metrics[k] for k in ("drafted", "accepted", "emitted", "catch_up_tokens",
                                                    "catch_up_seconds")})
        self.drafters.update(e.drafter for e in self.engine.trace.events if e.kind == "step" and e.emitted)


def serve(contenders: list[Contender], prompts: list[list[int]], params: SamplingParams) -> None:
    """One round: everybody serves all prompts, in turns."""
    for c in contenders:
        c.engine.trace = type(c.engine.trace)()
    for c, (requests, taken) in zip(contenders, in_turns([c.engine for c in contenders], prompts, params)):
        c.book(requests, taken)


def run(args) -> Report:
    from spin_core import zoo
    from spin_core.workloads import load_workload

    family = zoo.load("smollm2", device=args.device)
    prompts = [family.encode(p.messages) for p in load_workload(args.workload, "test", limit=args.prompts)]
    report = compare(family, prompts, args.arms or pool(family), args.policies, args.gammas, args.batch, args.repeats,
                  args.max_new_tokens, args.finalists)
    report.rows = [{"batch": args.batch, **row} for row in report.rows]
    report.notes.append(f"{len(prompts)} prompts of {args.workload}, {min(map(len, prompts))} to "
                        f"{max(map(len, prompts))} tokens, max_new_tokens {args.max_new_tokens}, batch {args.batch}")
    return report


def pool(family) -> list[str]:
    """Every drafter of the family, prompt lookup, and lookup with the family's first drafter behind it."""
    return [*family.drafters, "ngram", *(f"ngram+{name}" for name in list(family.drafters)[:1])]


def compare(family, prompts: list[list[int]], arms: list[str], policies: list[str], gammas: list[int], batch: int,
         repeats: int, max_new_tokens: int, finalists: int = 3) -> Report:
    """Warm-up and rounds: every contender serves ``prompts`` in the first, then plain decoding, the ``finalists``
    fastest fixed drafters and the policies."""
    params = SamplingParams(max_new_tokens=max_new_tokens)
    size = {"max_batch": batch, "max_len": max(map(len, prompts)) + max_new_tokens}

    fixed = [Contender("none", None, Engine(family, "none", 0, **size))]
    fixed += [Contender(arm, gamma, Engine(family, arm, gamma, **size)) for arm in arms for gamma in gammas]
    serve(fixed, prompts, params)
    # a policy with one draft length per drafter gets the one that served best in the warm-up
    lengths = {arm: max((c for c in fixed if c.name == arm), key=lambda c: c.warm_up).gamma for arm in arms}
    chosen = []
    for name in policies:
        for fast in (True, False) if name == policies[-1] else (True,):
            # spin-full chooses lengths itself
            selector = make(name, arms) if name == "spin-full" else make(name, arms, gamma=lengths)
            engine = Engine(family, selector=selector, pipeline="off", fast_switching=fast, **size)
            chosen.append(Contender(name if fast else f"{name}, waiting", None, engine))
    serve(chosen, prompts, params)
    everyone = fixed + chosen
    racing = everyone
    for _ in range(repeats):
        serve(racing, prompts, params)
        if racing is everyone:
            drafting = sorted(fixed[1:], key=lambda c: c.warm_up + c.rates[0], reverse=True)
            racing = [fixed[0], *drafting[:finalists], *chosen]
    return summarise(everyone, lengths)


def summarise(everyone: list[Contender], lengths: dict[str, int]) -> Report:
    """One row per contender, and the bars."""
    rounds = len(everyone[0].rates)
    best = max((c for c in everyone if c.fixed and len(c.rates) == rounds), key=lambda c: statistics.median(c.rates))
    rows = []
    for c in everyone:
        whole, steps = sum(c.seconds.values()), sum(c.drafters.values())
        rows.append({
            "contender": c.name if c.fixed else f"policy {c.name}", "gamma": c.gamma, "rounds": len(c.rates),
            "tokens_per_s": statistics.median(c.rates), "vs_best_fixed": ratio(c, best),
            "vs_plain": ratio(c, everyone[0]),
            "tokens_per_verification": c.counts["emitted"] / steps,
            "acceptance": c.counts["accepted"] / c.counts["drafted"] if c.counts["drafted"] else None,
            "draft_share": c.seconds["draft"] / whole, "select_share": None if c.fixed else c.seconds["select"] / whole,
            "catch_up_share": None if c.fixed else c.counts["catch_up_seconds"] / whole,
            "same_text": statistics.mean(a == b for a, b in zip(c.texts, everyone[0].texts)),
            "drafters": None if c.fixed else ", ".join(f"{n} {k / steps:.0%}" for n, k in c.drafters.most_common(4))})
    bars = [Bar(f"policy {c.name} over the best fixed drafter ({_label(best)})", ratio(c, best), ">= 1.0")
            for c in everyone if not c.fixed and c.name == "spin-full"]
    bars += [Bar(f"policy {c.name}: selection and matching, share of a step",
                 c.seconds["select"] / sum(c.seconds.values()), "<= 0.01") for c in everyone if not c.fixed]
    return Report("select-live", rows, bars, [
        "the best fixed drafter is chosen by the rounds that report it; policies keep what they learn between rounds",
        "draft lengths of policies that do not choose them: " + ", ".join(f"{a} {g}" for a, g in lengths.items()),
        "catch_up_share: seconds of reading ahead, beside the steps (waiting: within them), over all steps' seconds",
        "same_text: in fp32 products of other shapes round differently, and a near tie may fall the other way"])


def ratio(a: Contender, b: Contender) -> float:
    """Median over the rounds of a's rate over b's in the same round."""
    return statistics.median(x / y for x, y in zip(a.rates, b.rates))


def _label(c: Contender) -> str:
    return c.name if c.gamma is None else f"{c.name}, gamma {c.gamma}"
