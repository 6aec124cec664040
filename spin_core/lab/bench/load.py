"""The engine under load: requests come over time and some are given up; none is lost, and memory stays flat.

Every text is compared with the one that the request gets alone. Memory is what the process holds once the same service
has run for a while: objects that Python's collector tracks, and resident bytes. ``--faults`` serves while drafters and
selectors break and other threads interfere, with ``--engines N`` on many engines that several threads call at random
times (:mod:`.load_faults`); ``--beside N`` measures speed while N other programs compute (:mod:`.load_beside`).
"""

import gc
import statistics
import time

import psutil

from spin_core.engine import Engine
from spin_core.lab.bench import Bar, Report, at_least, load_beside, load_faults, positive
from spin_core.lab.bench.service import LIMITS, differences, jobs, serve, small

DESCRIPTION = "requests that come over time, queue, and are given up: none lost, texts as if alone, memory flat"
MARKS = 10          # times that memory is looked at


def add_arguments(parser) -> None:
    parser.add_argument("--requests", type=positive, help="(default 5000; with --faults 500)")
    parser.add_argument("--compare", type=at_least(0), default=1000,
                        help="texts compared with those of requests alone (default 1000)")
    parser.add_argument("--batch", type=positive, default=16, help="requests that run at once (default 16)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", action="store_true",
                        help="instead: a fault every 50 steps, in drafters, in the selector and from other threads")
    parser.add_argument("--engines", type=positive, metavar="N",
                        help="with --faults: N engines instead, each called from several threads at random times")
    parser.add_argument("--beside", type=at_least(0), metavar="N",
                        help="instead: throughput beside N busy processes against the fair share of the machine")
    parser.add_argument("--seconds", type=positive, default=5, help="with --beside: of a measurement (default 5)")


def run(args) -> Report:
    if args.beside is not None:
        return load_beside.measure(args.beside, args.seconds)
    if args.engines is not None:
        if not args.faults:
            raise ValueError("--engines needs --faults")
        return load_faults.measure_threads(args.engines, args.seed)
    if args.faults:
        return load_faults.measure(args.requests or 500, args.batch, args.seed)
    family = small()
    engine = Engine(family, max_batch=args.batch, kv_tokens=10 * args.batch, **LIMITS)
    todo = jobs(args.requests or 5000, args.seed, [*family.drafters, "ngram", "none"])
    began = time.perf_counter()
    served = serve(engine, todo, args.seed)
    seconds = time.perf_counter() - began
    lost = sum(not r.finished for r in served.requests) + len(engine.queue) + len(engine.running)
    wrong, compared = differences(family, list(zip(served.requests, todo))[:args.compare])
    served.requests.clear()
    memory = Memory(engine, len(todo))      # of a second service on the same engine: what grows now is a leak
    serve(engine, todo, args.seed + 1, keep=False, between=memory.look)
    return Report("load", memory.rows, [
        Bar("requests lost", lost, "<= 0"),
        Bar(f"texts that differ from those of requests alone, of {compared}", wrong, "<= 0"),
        Bar("objects held, last third over first third of a second service", memory.growth("objects"), "<= 1.02"),
        Bar("resident memory, the same", memory.growth("resident_mb"), "<= 1.05")], [
        f"{len(todo)} requests in {served.steps} steps, {seconds:.0f} s; batch {args.batch}, longest queue "
        f"{served.queued}; random models in float64, {engine.pipeline.count} micro-batches at the end",
        "how many texts of the embedded family differ through rounding, and by which gaps: bench equality"])


class Memory:
    """What the process holds, looked at :data:`MARKS` times over a service of ``count`` requests."""

    def __init__(self, engine: Engine, count: int) -> None:
        self.trace, self.every, self.rows = engine.trace, max(1, count // MARKS), []

    def look(self, submitted: int) -> None:
        """A new row where it is time for one."""
        if submitted // self.every > len(self.rows):
            self.trace.events.clear()       # as a service does that has written its events down
            gc.collect()
            self.rows.append({"jobs_submitted": submitted, "objects": len(gc.get_objects()),
                              "resident_mb": psutil.Process().memory_info().rss / 1e6})

    def growth(self, what: str) -> float | None:
        """The last third over the first; None where the system does not say."""
        values = [row[what] for row in self.rows]
        third = max(1, len(values) // 3)
        first = statistics.median(values[:third])
        return statistics.median(values[-third:]) / first if first else None
