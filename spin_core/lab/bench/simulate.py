"""The simulator: how many request-steps it makes per second, and whether its clock is right on this machine.

Speed is measured over the paper's setting. For the clock the engine serves the test split with every
drafter, gamma and batch of a grid, and the simulator serves the same, knowing only

* what passes of each model take by rows, measured apart from the engine,
* *efficiency factors*, one per model: how much longer such a pass takes inside the engine. They are fitted at a gamma
  that is not of the grid, at the largest batch, and stated in the report,
* what a step takes beside its passes, measured on *plain decoding* at the same batch,
* which drafts were accepted, read off the engine's own trace: this is a test of the clock, not of acceptance.

Both serve the prompts, whose reading is simulated too. The ratio of the two goodputs is what is reported. All engines,
those of the fit as well, serve in turns of a few steps: a machine whose speed drifts is as slow for one as for another.

The same grid is simulated once more with a *roofline* instead of tables: one profile of the machine, five numbers for
all models, fitted as ``bench passes`` does to passes measured apart, times the efficiency factors.

``--arrivals`` is no measurement: it runs the rungs of SPIN's ablation at the paper's scale while requests come one by
one or in bursts, and reports how long they wait.
"""

import statistics
import time
from itertools import product

import numpy as np

from spin_core import zoo
from spin_core.lab.bench import Bar, Report, above_zero, positive
from spin_core.lab.bench.rounds import in_turns
from spin_core.lab.bench.answers import pool
from spin_core.lab.bench.passes import CONTEXTS, DTYPES, fitted, models, peaks, work_of
from spin_core.lab.bench.timing import tables, timings
from spin_core.engine import Engine
from spin_core.request import SamplingParams
from spin_core.select import make
from spin_core.select.base import NONE
from spin_core.lab.simulate.recording import MAX_GAMMA, Passes, Recording
from spin_core.lab.simulate import arrivals, paper
from spin_core.lab.simulate.costs import Roofline, Tables
from spin_core.lab.simulate.profiles import DRAFTERS, Hardware
from spin_core.lab.simulate.simulator import simulate
from spin_core.workloads import NAMES, load_workload

DESCRIPTION = "speed of the simulator, and simulated against measured goodput on this machine"
FASTEST = 200_000       # request-steps per second, fixed policies
CONTEXT = 192           # cached tokens per request of the tables' passes


def add_arguments(parser) -> None:
    parser.add_argument("--requests", type=positive, default=400, help="requests of the speed runs (default 400)")
    parser.add_argument("--repeats", type=positive, default=5,
                        help="repeats of every timing, the fastest counts (default 5)")
    parser.add_argument("--validate", action="store_true", help="also serve real prompts and compare (minutes)")
    parser.add_argument("--batch", type=positive, nargs="+", default=[1, 4, 8],
                        help="of the validation (default 1 4 8)")
    parser.add_argument("--gamma", type=positive, nargs="+", default=[2, 4], help="of the validation (default 2 4)")
    parser.add_argument("--limit", type=positive, default=3, help="prompts of each workload's test split (default 3)")
    parser.add_argument("--max-new-tokens", type=positive, default=48)
    parser.add_argument("--arrivals", choices=arrivals.KINDS,
                        help="only simulate the rungs of SPIN, under such arrivals")
    parser.add_argument("--rate", type=above_zero, default=2.0, help="requests that arrive per second (default 2)")


def run(args) -> Report:
    if args.arrivals:
        return under_load(args.arrivals, args.rate, args.requests)
    rows = speed(args.requests, args.repeats)
    fixed = min(r["request_steps_per_s"] for r in rows if r["policy"] != "spin" and r["batch"] >= 32)
    report = Report("simulate", rows, [Bar("request-steps per second, fixed policies, batch 32 and 64, the slowest",
                                           fixed, f">= {FASTEST}")],
                    ["one core; LLaMA-7B on a V100; made-up recordings of Alpaca"])
    if args.validate:
        prompts = [p.messages for name in NAMES if name != "mix"
                   for p in load_workload(name, split="test", limit=args.limit)]
        grid, factors, machine = validate(zoo.load("smollm2"), prompts, args.batch, args.gamma, args.max_new_tokens,
                                          args.repeats)
        errors = [abs(r["ratio"] - 1) for r in grid]
        roofline = [abs(r["roofline_ratio"] - 1) for r in grid]
        report.rows += grid + [{"model": name, "efficiency_factor": f} for name, f in factors.items()]
        report.bars += [Bar("simulated / measured goodput, largest error of the grid", max(errors), "<= 0.15"),
                        Bar("the same, mean error", statistics.mean(errors), "<= 0.08"),
                        Bar("the same with a fitted roofline, largest error", max(roofline), "<= 0.15"),
                        Bar("with a fitted roofline, mean error", statistics.mean(roofline), "<= 0.08")]
        report.notes += [f"validation: {len(prompts)} prompts, greedy, at most {args.max_new_tokens} tokens",
                         "efficiency_factor: a pass inside the engine over the same measured apart, fitted at batch "
                         f"{max(args.batch)}, gamma {between(args.gamma)}, which is not of the grid",
                         f"roofline: {machine.describe()}"]
    return report


def under_load(kind: str, rate: float, requests: int, data_set: str = "CP") -> Report:
    """The rungs of SPIN's ablation at the paper's scale: goodput, and how long requests wait and take."""
    rows = []
    for name in paper.RUNGS:
        run = paper.rung(name, data_set, "LLaMA-7B", requests=requests, arrivals=arrivals.times(kind, requests, rate))
        waits, takes = (np.percentile(seconds, (50, 95)).tolist() for seconds in (run.waiting, run.latency))
        rows.append({"arrivals": kind, "rate": rate if kind != "closed" else None, "rung": name, "goodput": run.goodput,
                     "waiting_p50_s": waits[0], "waiting_p95_s": waits[1],
                     "latency_p50_s": takes[0], "latency_p95_s": takes[1]})
    offered = rate * paper.texts(data_set, requests).lengths.mean()
    load = "all at once" if kind == "closed" else f"{rate:g} requests, hence {offered:.0f} tokens, asked for per second"
    return Report("simulate-arrivals", rows, notes=[
        f"modelled: LLaMA-7B on a {paper.CARD}, batch {paper.BATCH}, {requests} made-up requests of {data_set}; {load}",
        "goodput: emitted tokens per second from the first arrival to the last token; waiting: from arrival to the "
        "batch; latency: from arrival to the last token"])


def speed(requests: int, repeats: int) -> list[dict]:
    """Request-steps per second for fixed policies and for SPIN's selection."""
    rows, texts = [], paper.texts("Alpaca", requests)
    for policy, strategy, batch in product(("68M", "spin"), ("padded", "decomposed"), (8, 32, 64)):
        costs, seconds = paper.system("LLaMA-7B", strategy), []
        for _ in range(repeats):
            chooser = policy if policy in DRAFTERS else make(policy, list(DRAFTERS))
            start = time.perf_counter()
            done = simulate(texts, costs, chooser, batch=batch)
            seconds.append(time.perf_counter() - start)
        rows.append({"policy": policy, "strategy": strategy, "batch": batch, "request_steps": done.request_steps,
                     "request_steps_per_s": done.request_steps / min(seconds)})
    return rows


def validate(family, prompts, batches, gammas, max_new_tokens: int,
             repeats: int) -> tuple[list[dict], dict[str, float], Hardware]:
    """Simulated and measured tokens per second over batch x drafter x gamma; the efficiency factors by model; the
    profile of the roofline."""
    names = pool(family)[0]
    times = timings(family, names, {}, repeats, CONTEXTS)
    apart, best = tables(times, CONTEXT), peaks(family, repeats)
    params = SamplingParams(max_new_tokens=max_new_tokens)
    inside = [(max(batches), name, between(gammas)) for name in names]
    grid = [(batch, name, gamma) for batch in batches for name in names for gamma in gammas]
    runs = serve(family, prompts, params, inside + [(batch, NONE, 0) for batch in batches] + grid)
    factors = efficiency({name: runs[max(batches), name, gamma][0] for _, name, gamma in inside}, apart)
    machine, known = fitted(family, work_of(family, times), best, factors), models(family)
    target = known.pop("target")
    passes = {name: Passes(p.rows, tuple(factors[name] * s for s in p.seconds)) for name, p in apart.items()}
    rows = []
    for batch, drafter, gamma in grid:
        engine, seconds = runs[batch, drafter, gamma]
        beside = statistics.median(e.step_seconds - e.target_seconds for e in steps(runs[batch, NONE, 0][0]))
        measured = sum(len(e.emitted) for e in steps(engine)) / seconds
        costs = Tables(passes, beside), Roofline(target, known, machine, shared=True, overhead=beside,
                                                 dtype=DTYPES[family.target.dtype])
        trace = recording(engine, drafter, passes)
        simulated, roofline = (simulate(trace, c, drafter, batch=batch, gamma=gamma).goodput for c in costs)
        rows.append({"batch": batch, "drafter": drafter, "gamma": gamma, "measured": measured, "simulated": simulated,
                     "ratio": simulated / measured, "roofline": roofline, "roofline_ratio": roofline / measured})
    return rows, factors, machine


def between(gammas) -> int:
    """A gamma that is none of these, and near them."""
    return next(g for g in range(min(gammas) + 1, MAX_GAMMA + len(gammas) + 2) if g not in gammas)


def efficiency(runs: dict[str, Engine], apart: dict[str, Passes]) -> dict[str, float]:
    """By model the median of how much longer its passes took in these runs, one per drafter, than measured apart.

    Steps in which a request reads its prompt are left out.
    """
    ratios: dict[str, list[float]] = {name: [] for name in ("target", *runs)}
    for drafter, engine in runs.items():
        by_step: dict[int, list] = {}
        for event in steps(engine):
            by_step.setdefault(event.step, []).append(event)
        seen: set[int] = set()
        for events in by_step.values():
            here = {e.request for e in events}
            drafted = [len(e.drafted) for e in events]
            if here <= seen and max(drafted):
                rows = len(events) + sum(drafted)
                ratios["target"].append(events[0].target_seconds / float(apart["target"](rows)))
                draft = sum(float(apart[drafter](sum(n > k for n in drafted))) for k in range(max(drafted)))
                ratios[drafter].append(events[0].draft_seconds / draft)
            seen |= here
    return {name: statistics.median(values) if values else 1.0 for name, values in ratios.items()}


def serve(family, prompts, params, settings) -> dict[tuple[int, str, int], tuple[Engine, float]]:
    """By setting, (batch, drafter, gamma): an engine that has served the prompts, and the seconds that took it. Before,
    each has served one batch to warm up."""
    texts = [family.encode(prompt) for prompt in prompts]
    room = max(map(len, texts)) + params.max_new_tokens
    engines = {(batch, drafter, gamma): Engine(family, drafter, gamma, max_batch=batch, max_len=room)
               for batch, drafter, gamma in settings}
    for (batch, *_), engine in engines.items():
        in_turns([engine], texts[:batch], params)
        engine.trace.events.clear()
    taken = in_turns(list(engines.values()), texts, params)
    return {setting: (engine, seconds) for (setting, engine), (_, seconds) in zip(engines.items(), taken)}


def steps(engine: Engine) -> list:
    return [e for e in engine.trace.events if e.kind == "step" and e.emitted]


def recording(engine: Engine, drafter: str, passes: dict[str, Passes]) -> Recording:
    """The engine's trace as a recording of its one drafter: what was accepted where a step began, nothing
    elsewhere."""
    texts: dict[int, list] = {}
    for event in steps(engine):
        texts.setdefault(event.request, []).append(event)
    accepted, proposed, prompts, lengths = [], [], [], []
    for events in texts.values():
        length = sum(len(e.emitted) for e in events)
        row, most, at = np.zeros(length, np.uint8), np.zeros(length, np.uint8), 0
        for event in events:
            row[at], most[at] = event.accepted, min(len(event.drafted), MAX_GAMMA)
            at += len(event.emitted)
        # a stop token that was drafted and accepted ends the text without a token of the target's own
        row[at - len(events[-1].emitted)] = len(events[-1].emitted) - 1
        accepted.append(row)
        proposed.append(np.maximum(most, row))
        prompts.append(events[0].context)
        lengths.append(length)
    return Recording((drafter,), np.concatenate(accepted)[None], np.concatenate(proposed)[None],
                     np.append(0, np.cumsum(lengths)), np.array(prompts), ("trace",) * len(texts),
                     tuple(map(str, texts)), {name: passes[name] for name in (drafter, "target")},
                     about={"kind": "measured", "source": "the engine's trace"})
