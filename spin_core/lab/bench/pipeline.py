"""Does drafting beside verifying pay on this machine? Overlap of synthetic and real stages, the heuristic's choice.

Overlap efficiency is ideal / achieved, where the ideal lets the busier stage work all the time:
max(sum of draft, sum of verify). Of synthetic stages the sums are known: they are calibrated alone, in one thread. Of
real ones they are those of the run itself, in which each stage has one core and not all: whether that is better than
taking turns with all cores is another question, and the goodput answers it.

The best fixed count is picked in runs of its own; then it, the heuristic and the engine without a pipeline run in
turns, and what is compared are ratios within a turn. Were the best picked in the same runs, its luck would count.
The costs of trying are a bar of their own: the seconds that the heuristic's trials lost, of all that it served.
"""

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from spin_core import zoo
from spin_core.lab.bench import Bar, Report, positive
from spin_core.engine import Engine
from spin_core.pipeline import DRAFT, VERIFY, Schedule, Sequential, Threads
from spin_core.lab.simulate.timeline import replay
from spin_core.request import Request, SamplingParams
from spin_core.trace import Event
from spin_core.workloads import load_workload

DESCRIPTION = "overlap of drafting and verifying, goodput by number of micro-batches, and the heuristic's choice"
SYNTHETIC = ((0.002, 0.002), (0.001, 0.003), (0.003, 0.001))        # (draft, verify) seconds of a group
TRIALS = 3
PICKING = 5             # runs of every count, to pick the best one: their lowest and highest are a 94 % interval
LEARNING = 2            # runs that the heuristic has to itself before it is compared
SHORT = 4               # tokens of a run that only warms up


def add_arguments(parser) -> None:
    parser.add_argument("--batch", type=positive, default=8, help="requests served at once (default 8)")
    parser.add_argument("--counts", type=positive, nargs="+", default=[1, 2, 4, 8],
                        help="micro-batches (default 1 2 4 8)")
    parser.add_argument("--drafter", help="the drafter (default: the family's first)")
    parser.add_argument("--gamma", type=positive, default=4)
    parser.add_argument("--max-new-tokens", type=positive, default=32)
    parser.add_argument("--repeats", type=positive, default=5, help="turns of the comparison with the best (default 5)")
    parser.add_argument("--rounds", type=positive, default=40, help="rounds of the synthetic stages (default 40)")


def run(args) -> Report:
    rows = [*interpreter_lock(), *(row for times in SYNTHETIC for row in synthetic(*times, rounds=args.rounds))]
    synthetic_worst = min(r["efficiency"] for r in rows if r.get("micro_batches", 1) > 1)
    family = zoo.load("smollm2")
    some = [p.messages for p in load_workload("mix", split="test", seed=1).first(4 * args.batch)]
    prompts = sorted(some, key=lambda messages: len(family.encode(messages)))[:args.batch]    # reading is not compared
    params = SamplingParams(max_new_tokens=args.max_new_tokens, stop_ids=())
    contestants = engines(family, len(prompts), args.counts, drafter=args.drafter, gamma=args.gamma)
    picked = sweep({name: engine for name, engine in contestants.items() if name != "auto"}, prompts, params,
                   repeats=PICKING, warm=1)
    rows += [{"what": "picking", "micro_batches": name, **row} for name, row in summarise(picked).items()]
    rate = {name: statistics.median(r.rate for r in runs) for name, runs in picked.items() if name != "off"}
    best = max(rate, key=rate.get)
    overlapping = max((name for name in rate if name > 1), key=rate.get, default=None)
    live = sweep({name: contestants[name] for name in ("off", best, "auto")}, prompts, params, repeats=args.repeats,
                 warm=LEARNING)
    rows += [{"what": "compared", "micro_batches": name, **row} for name, row in summarise(live).items()]
    heuristic = contestants["auto"].pipeline.heuristic
    few, whole = params.with_(max_new_tokens=min(12, args.max_new_tokens)), torch.get_num_threads()
    rows += [{"what": "stage", "stage": name, "threads": threads, "seconds": stage.seconds, "fixed": stage.fixed}
             for threads in (whole, max(1, whole // 2))
             for name, stage in zip((DRAFT, VERIFY), stages(family, prompts, few, threads=threads, drafter=args.drafter,
                                                            gamma=args.gamma))]
    bars = [Bar("overlap efficiency, synthetic stages, the worst", synthetic_worst, ">= 0.85"),
            Bar("overlap efficiency, live, with the best count above one",
                statistics.median(r.schedule.efficiency for r in picked[overlapping]) if overlapping else None,
                ">= 0.75"),
            Bar("goodput of the heuristic over the engine without a pipeline (3 % are noise)",
                ratio(live, "auto", "off"), ">= 0.97"),
            Bar("goodput of the heuristic over the best fixed count", ratio(live, "auto", best), ">= 0.97"),
            Bar("what the heuristic's trials lost, of all the time it served", heuristic.lost / heuristic.served,
                "<= 0.05")]
    chosen = sorted({r.count for r in live["auto"]})
    return Report("pipeline", rows, bars, [
        "two threads: wall time of two threads over that of one, each doing the same; 1 is perfect, 2 is taking turns",
        f"engine: {args.batch} requests with short prompts, {args.max_new_tokens} tokens each, gamma {args.gamma}, "
        "while all decode; medians of runs in turns; goodput is verified requests per second times tokens per step",
        f"the heuristic chose {', '.join(map(str, chosen))} micro-batches; the best fixed count, picked in other runs, "
        f"is {best}; {torch.get_num_threads()} threads in all, with more than one micro-batch they are shared out",
        f"turn by turn, auto over off: {_turns(live, 'auto', 'off')}; over the best: {_turns(live, 'auto', best)}",
        f"its decisions: {', '.join(f'{d.count} ({d.why})' for d in heuristic.decisions)}"])


# ---- without an engine

def interpreter_lock() -> list[dict]:
    """Do two threads compute side by side? In large operators they should, between tiny ones they cannot."""
    large, tiny = torch.randn(512, 512), torch.randn(16)

    def products() -> None:
        for _ in range(10):
            torch.mm(large, large)

    def small() -> None:
        for _ in range(10000):
            tiny.add_(1.0)

    def wall(work, threads: int) -> float:
        def one() -> None:
            torch.set_num_threads(1)
            work()

        workers = [threading.Thread(target=one) for _ in range(threads)]
        start = time.perf_counter()
        for thread in workers:
            thread.start()
        for thread in workers:
            thread.join()
        return time.perf_counter() - start

    threads = torch.get_num_threads()
    rows = []
    for name, work in (("two threads, products of 512 x 512", products), ("two threads, 16 numbers at a time", small)):
        pairs = [(wall(work, 2), wall(work, 1)) for _ in range(7)]
        rows.append({"what": name, "slowdown": statistics.median(two / one for two, one in pairs)})
    torch.set_num_threads(threads)          # new threads start with the number that was set last
    return rows


def synthetic(draft: float, verify: float, rounds: int = 60, count: int = 4) -> list[dict]:
    """Stages that compute for a known time: one row for each executor."""
    matrix = torch.randn(192, 192)          # in a core's own cache, and long enough not to queue for the interpreter

    def compute(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix)

    def alone(times: int) -> float:
        start = time.perf_counter()
        compute(times)
        return time.perf_counter() - start

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone(400)
    efficiency: dict[int, list[float]] = {1: [], count: []}
    for _ in range(TRIALS):
        for executor, groups in ((Sequential(), 1), (Threads((1, 1)), count)):
            before = statistics.median(alone(40) for _ in range(15)) / 40     # anew: clocks of processors change
            work = {DRAFT: max(1, round(draft / before)), VERIFY: max(1, round(verify / before))}
            seconds = overlapped(executor, lambda: compute(work[DRAFT] * count // groups),
                                 lambda _: compute(work[VERIFY] * count // groups), groups, rounds)
            after = statistics.median(alone(40) for _ in range(15)) / 40
            ideal = max(work.values()) * count * rounds * (before + after) / 2
            efficiency[groups].append(ideal / seconds)
    torch.set_num_threads(threads)
    return [{"what": f"synthetic, draft : verify = {draft / verify:.2g}", "micro_batches": groups,
             "efficiency": statistics.median(values)} for groups, values in efficiency.items()]


def overlapped(executor, draft, verify, groups: int, rounds: int) -> float:
    """Run ``rounds`` rounds of ``groups`` groups through both stages; the seconds that it took."""
    with executor:
        start = time.perf_counter()
        in_flight = deque(executor.launch(draft, verify, g) for g in range(groups))
        for left in range(groups * rounds, 0, -1):
            done = in_flight.popleft()
            done.result()
            if left > groups:
                in_flight.append(executor.launch(draft, verify, done.group))
        return time.perf_counter() - start


# ---- with the engine

@dataclass
class Run:
    """One run of an engine while all requests decoded: verified requests per second, tokens per verification, the
    schedule, the number of micro-batches, and the texts."""

    rate: float
    tokens: float
    schedule: Schedule
    count: int
    texts: list[list[int]]

    @property
    def goodput(self) -> float:
        """Tokens per second."""
        return self.rate * self.tokens


def engines(family, batch: int, counts: Sequence[int], *, drafter: str | None = None,
            gamma: int = 4) -> dict[int | str, Engine]:
    """An engine for every setting: "off", each fixed count that ``batch`` requests allow, and "auto"."""
    drafter = drafter or next(iter(family.drafters))
    return {setting: Engine(family, drafter, gamma, max_batch=batch, max_len=1024, pipeline=setting)
            for setting in ("off", *sorted({c for c in counts if c <= batch}), "auto")}


def sweep(contestants: dict[int | str, Engine], prompts: Sequence, params: SamplingParams, *, repeats: int = 5,
          warm: int = 4, watch: Callable = iter) -> dict[int | str, list[Run]]:
    """``repeats`` runs of every engine, in turns, each turn begun by another one. Before that the heuristic gets
    ``warm`` runs to choose in, and an engine that has never served one short run. The turns pass through ``watch``."""
    short = params.with_(max_new_tokens=min(SHORT, params.max_new_tokens))
    for setting, engine in contestants.items():
        for _ in range(warm if setting == "auto" else min(warm, not engine.steps)):
            engine.generate(prompts, params if setting == "auto" else short)
    runs: dict[int | str, list[Run]] = {setting: [] for setting in contestants}
    order = list(contestants.items())
    for turn in watch(range(repeats)):
        at = turn % len(order)
        for setting, engine in order[at:] + order[:at]:
            engine.trace.events.clear()
            requests = engine.generate(prompts, params)
            runs[setting].append(measure(engine.trace.events, requests))
    return runs


def full_batch(events: list[Event], batch: int) -> list[Event]:
    """The verifications between the last request's first and the first request's last: all requests decode."""
    steps = [e for e in events if e.kind == "step" and e.emitted]
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for e in steps:
        first.setdefault(e.request, e.time)
        last[e.request] = e.time
    if len(first) < batch:
        return []
    begin, end = max(first.values()), min(last.values())
    return [e for e in steps if begin < e.time < end]


def measure(events: list[Event], requests: list[Request]) -> Run:
    """What a run was like while all its requests decoded. Raises ValueError when they never did."""
    steps = full_batch(events, len(requests))
    if len(steps) < 2 * len(requests):
        raise ValueError("the requests hardly decoded at the same time: allow more new tokens")
    begin, end = steps[0].time, steps[-1].time
    counted = [e for e in steps if e.time > begin]
    emitting = [e for e in events if e.emitted]
    counts = [e.micro_batches for e in steps]
    return Run(len(counted) / (end - begin), sum(len(e.emitted) for e in emitting) / len(emitting),
               replay(steps).between(begin, end), statistics.mode(counts), [r.output_ids for r in requests])


@dataclass(frozen=True)
class Stage:
    """What a stage takes for the whole batch, in seconds, and which share of that does not shrink with the batch."""

    seconds: float
    fixed: float


def stages(family, prompts: Sequence, params: SamplingParams, *, threads: int, drafter: str | None = None,
           gamma: int = 4) -> tuple[Stage, Stage]:
    """Drafting and verifying with ``threads`` threads, measured at the whole batch and at half of it.

    A line through both gives the share that is fixed: t(B) = a + b B, fixed = a / t(B).
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole, half = (_times(family, prompts[:n], params, drafter or next(iter(family.drafters)), gamma)
                       for n in (len(prompts), len(prompts) // 2))
    finally:
        torch.set_num_threads(before)
    return tuple(Stage(w, min(1.0, max(0.0, 2 * h / w - 1))) for w, h in zip(whole, half))


def _times(family, prompts: Sequence, params: SamplingParams, drafter: str, gamma: int) -> tuple[float, float]:
    """Median seconds of a draft and of a verification while all of ``prompts`` decode."""
    engine = Engine(family, drafter, gamma, max_batch=len(prompts), max_len=1024)
    engine.generate(prompts, params)
    steps = {e.step: e for e in full_batch(engine.trace.events, len(prompts))}.values()
    return (statistics.median(e.draft_seconds for e in steps),
            statistics.median(e.target_seconds + e.verify_seconds for e in steps))


def summarise(live: dict[int | str, list[Run]]) -> dict[int | str, dict]:
    """Medians by setting."""
    def median(runs: list[Run], what) -> float:
        return statistics.median(map(what, runs))

    return {name: {"goodput": median(runs, lambda r: r.goodput), "low": min(r.goodput for r in runs),
                   "high": max(r.goodput for r in runs),
                   "efficiency": median(runs, lambda r: r.schedule.efficiency),
                   "draft_busy": median(runs, lambda r: r.schedule.busy_share(DRAFT)),
                   "verify_busy": median(runs, lambda r: r.schedule.busy_share(VERIFY))} for name, runs in live.items()}


def ratio(live: dict[int | str, list[Run]], one: int | str, other: int | str) -> float:
    """Median over the turns of one setting's rate over another's."""
    return statistics.median(_ratios(live, one, other))


def _ratios(live: dict[int | str, list[Run]], one: int | str, other: int | str) -> list[float]:
    return [a.rate / b.rate for a, b in zip(live[one], live[other])]


def _turns(live: dict[int | str, list[Run]], one: int | str, other: int | str) -> str:
    return " ".join(f"{value:.2f}" for value in _ratios(live, one, other))
