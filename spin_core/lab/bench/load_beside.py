"""Throughput beside other programs that compute, against the fair share of the machine.

Every measurement runs in processes of its own, because torch's threads are set up when it is loaded
(:mod:`spin_core.threads`): by us, and as torch does by default. Three programs are measured: plain decoding, drafting
and verifying in two threads (the pipeline), and in two processes (:mod:`spin_core.distributed`). The fair share beside
N other programs is what the same program makes alone, times the part of its cores that is left to one of N + 1.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from spin_core import threads
from spin_core.lab.bench import Bar, Report
from spin_core.lab.bench.distributed import run_ranks

BATCH = 8
PLAIN, _, PROCESSES = PROGRAMS = "plain", "pipeline", "two processes"
DEFAULT = {"OMP_WAIT_POLICY": "active", "OMP_NUM_THREADS": str(os.cpu_count())}     # how torch sets up its threads
BUSY = "while True: pass"
PATIENCE = 30       # seconds that a program may take for its first step and its last


def measure(busy: int, seconds: int) -> Report:
    """Rows for each program, alone and beside ``busy`` processes; for plain decoding with torch's threads, too."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load, rows = os.getloadavg()[0], []
    for program, way, environment in (*((program, "ours", {}) for program in PROGRAMS), (PLAIN, "default", DEFAULT)):
        alone, beside = (_program(program, environment, count, seconds) for count in (0, busy))
        fair = alone["tokens_per_s"] * min(1, cores / (busy + 1) / min(cores, alone["threads"]))
        name = {"program": program, "threads_set_by": way}
        rows += [{**name, "beside": 0, **alone},
                 {**name, "beside": busy, **beside, "fair_share": fair, "of_fair_share": beside["tokens_per_s"] / fair}]
    return Report("load-beside", rows, [
        *(Bar(f"{row['program']}: throughput beside {busy} busy processes over the fair share", row["of_fair_share"],
              ">= 0.7") for row in rows[1:6:2]),
        Bar("throughput alone over that with torch's default threads",
            rows[0]["tokens_per_s"] / rows[-2]["tokens_per_s"], ">= 0.9")], [
        f"a random model of 6 layers and a drafter of one, batch {BATCH}, {seconds} s each; load of the machine "
        f"before: {load:.1f}",
        "fair share: the rate alone, times the cores left to one of N + 1 programs over the threads used alone"])


def _program(program: str, environment: dict[str, str], busy: int, seconds: int) -> dict:
    """What a program measures that starts beside ``busy`` others: threads and tokens per second."""
    ours = {*threads.WAITING, *threads.COUNTS, threads.OURS}
    environ = {name: value for name, value in os.environ.items() if name not in ours} | environment
    with ExitStack() as stack:
        for _ in range(busy):
            other = stack.enter_context(subprocess.Popen([sys.executable, "-c", BUSY]))
            stack.callback(other.kill)
        time.sleep(0.3 * bool(busy))
        return run_ranks(1 + (program == PROCESSES), ["-m", __name__, program, str(seconds)], environ)


def decode(program: str, seconds: float, report: Callable[[dict], None]) -> None:
    """In a process of its own: decode for so long, and report; in time even if a step takes minutes."""
    import torch

    from spin_core import distributed
    from spin_core.engine import Engine
    from spin_core.lab.bench.service import SmallFamily, llama
    from spin_core.request import SamplingParams
    from spin_core.zoo import DraftModel

    target, drafter = (llama(4096, 576, layers, 9, 3, seed=layers) for layers in (6, 1))
    family = SmallFamily(target, {"small": DraftModel("small", drafter, None, 512)}, vocab_size=4096, stop_ids=(),
                         max_context=512)
    family.decode = lambda ids: ""
    family = distributed.join(family)
    drafter, pipeline, more = ("none", "off", 0) if program == PLAIN else ("small", 2, 1)
    engine = Engine(family, drafter, 2, max_batch=BATCH, max_len=512, pipeline=pipeline)
    requests = [engine.submit([1, 2, 3, 4], SamplingParams(max_new_tokens=500, stop_ids=())) for _ in range(BATCH)]
    start, before = time.perf_counter(), 0

    def finish() -> None:
        tokens = sum(len(request.output_ids) for request in requests) - before
        # of a step that does not end the rate is what it would have been with its end now
        report({"threads": torch.get_num_threads() + more,
                "tokens_per_s": max(tokens, BATCH) / (time.perf_counter() - start)})
        sys.stdout.flush()
        os._exit(0)

    threading.Timer(seconds + PATIENCE, finish).start()
    while not all(request.output_ids for request in requests):      # reads the prompts and warms up
        engine.step()
    start, before = time.perf_counter(), sum(len(request.output_ids) for request in requests)
    while time.perf_counter() - start < seconds:
        engine.step()
    finish()


if __name__ == "__main__":
    decode(sys.argv[1], float(sys.argv[2]), lambda found: print(json.dumps(found)))
