"""Selection live: policies against every fixed drafter, served by the engine on this machine, in turns of a few steps.

All contenders answer the same prompts greedily. A ratio is the median over the rounds of ratios within a round. The
best fixed drafter is the best of all drafters and draft lengths in hindsight. After one round all but the fastest few
fixed drafters stand back, which leaves time for more rounds between those that are close. Policies serve as in a
service: what they learn in one round they keep.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from spin_core.engine import Engine
from spin_core.lab.bench import Bar, Report, positive
from spin_core.lab.bench.rounds import Contender, Tokens, drafters_used, of_trace, ratio, same_text, serve
from spin_core.request import SamplingParams
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


def compare(family, prompts: Tokens, arms: list[str], policies: list[str], gammas: list[int], batch: int, repeats: int,
            max_new_tokens: int, finalists: int = 3) -> Report:
    """Warm up, and serve ``repeats`` rounds: the first with every contender, the others with plain decoding, the
    ``finalists`` fastest fixed drafters and the policies."""
    size = {"max_batch": batch, "max_len": max(map(len, prompts)) + max_new_tokens}

    def round_(contenders: Sequence[Contender], number: int) -> None:
        serve(contenders, number, "prompts", prompts, SamplingParams(max_new_tokens=max_new_tokens))

    def warm_up(contenders: Sequence[Contender]) -> list[float]:
        """Their rates, which no round counts."""
        round_(contenders, 0)
        rates = [c.rate() for c in contenders]
        for contender in contenders:
            contender.cells.clear()
            contender.engine.trace.events.clear()
        return rates

    fixed = [Contender("none", engine=Engine(family, "none", 0, **size))]
    fixed += [Contender(arm, gamma=gamma, engine=Engine(family, arm, gamma, **size))
              for arm in arms for gamma in gammas]
    warm = dict(zip(map(_label, fixed), warm_up(fixed)))
    # a policy with one draft length per drafter gets the one that served best in the warm-up
    lengths = {arm: max((c for c in fixed if c.name == arm), key=lambda c: warm[_label(c)]).gamma for arm in arms}
    chosen = []
    for name in policies:
        for fast in (True, False) if name == policies[-1] else (True,):
            # spin-full chooses lengths itself
            selector = make(name, arms) if name == "spin-full" else make(name, arms, gamma=lengths)
            engine = Engine(family, selector=selector, pipeline="off", fast_switching=fast, **size)
            chosen.append(Contender(name if fast else f"{name}, waiting", engine=engine))
    warm_up(chosen)
    serving = contenders = fixed + chosen
    for number in range(repeats):
        round_(serving, number)
        if serving is contenders:
            fastest = sorted(fixed[1:], key=lambda c: warm[_label(c)] + c.rate(), reverse=True)
            serving = [fixed[0], *fastest[:finalists], *chosen]
    return summarise(fixed, chosen, lengths)


def summarise(fixed: list[Contender], policies: list[Contender], lengths: dict[str, int]) -> Report:
    """One row per contender, and the bars. The first of ``fixed`` decodes plainly."""
    rounds = len(fixed[0].cells)
    best = max((c for c in fixed if len(c.cells) == rounds), key=lambda c: statistics.median(c.rates()))
    rows = []
    for c in fixed + policies:
        chooses, metrics = c in policies, c.engine.trace.metrics()
        seconds, trace = sum(metrics["seconds"].values()), of_trace(c.engine.trace)
        rows.append({
            "contender": f"policy {c.name}" if chooses else c.name, "gamma": c.gamma, "rounds": len(c.cells),
            "tokens_per_s": statistics.median(c.rates()), "vs_best_fixed": ratio(c, best),
            "vs_plain": ratio(c, fixed[0]), "tokens_per_verification": trace["tokens_per_verification"],
            "acceptance": trace["acceptance"], "draft_share": trace["draft_share"],
            "select_share": trace["select_share"] if chooses else None,
            "catch_up_share": metrics["catch_up_seconds"] / seconds if chooses else None,
            "same_text": same_text(c, fixed[0]),
            "drafters": drafters_used(c.engine.trace, most=4) if chooses else None})
    bars = [Bar(f"policy {c.name} over the best fixed drafter ({_label(best)})", ratio(c, best), ">= 1.0")
            for c in policies if c.name == "spin-full"]
    bars += [Bar(f"policy {c.name}: selection and matching, share of a step", of_trace(c.engine.trace)["select_share"],
                 "<= 0.01") for c in policies]
    return Report("select-live", rows, bars, [
        "the best fixed drafter is chosen by the rounds that report it; policies keep what they learn between rounds",
        "draft lengths of policies that do not choose them: " + ", ".join(f"{a} {g}" for a, g in lengths.items()),
        "catch_up_share: seconds of reading ahead, beside the steps (waiting: within them), over all steps' seconds",
        "same_text: in fp32 products of other shapes round differently, and a near tie may fall the other way"])


def _label(c: Contender) -> str:
    return c.name if c.gamma is None else f"{c.name}, gamma {c.gamma}"
