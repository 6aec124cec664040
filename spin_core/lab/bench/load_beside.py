"""Throughput beside other programs that compute, against the fair share of the machine.

Every measurement runs in a process of its own, because torch's threads are set up when it is loaded
(:mod:`spin_core.threads`): by us, and as torch does by default. The fair share beside N equal programs is what the same
program makes alone, times the part of its cores that is left to one of N + 1 programs.
"""

from __future__ import annotations

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

BATCH = 8
WAYS = {"ours": {}, "torch's default": {"OMP_WAIT_POLICY": "active", "OMP_NUM_THREADS": str(os.cpu_count())}}
BUSY = "while True: pass"
PATIENCE = 30       # seconds that a program may take for its first step and its last


def measure(busy: int, seconds: int) -> Report:
    """A row for each way to set up threads, alone and beside ``busy`` processes."""
    rows = []
    for way, environment in WAYS.items():
        alone = _program(environment, 0, seconds)
        beside = _program(environment, busy, seconds)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        fair = alone["tokens_per_s"] * min(1, cores / (busy + 1) / alone["threads"])
        rows += [{"threads_set_by": way, "beside": 0, **alone},
                 {"threads_set_by": way, "beside": busy, **beside, "fair_share": fair,
                  "of_fair_share": beside["tokens_per_s"] / fair}]
    ours, default = rows[:2], rows[2:]
    return Report("load-beside", rows, [
        Bar(f"throughput beside {busy} busy processes over the fair share", ours[1]["of_fair_share"], ">= 0.7"),
        Bar("throughput alone over that with torch's default threads",
            ours[0]["tokens_per_s"] / default[0]["tokens_per_s"], ">= 0.9")], [
        f"plain decoding of a random model of 6 layers, batch {BATCH}, {seconds} s each; load of the machine before: "
        f"{os.getloadavg()[0]:.1f}",
        "fair share: the rate alone, times the cores left to one of N + 1 programs over the threads used alone"])


def _program(environment: dict[str, str], busy: int, seconds: int) -> dict:
    """What a program measures that starts beside ``busy`` others: threads and tokens per second."""
    ours = {*threads.WAITING, *threads.COUNTS, threads.OURS}
    environ = {name: value for name, value in os.environ.items() if name not in ours} | environment
    with ExitStack() as stack:
        for _ in range(busy):
            other = stack.enter_context(subprocess.Popen([sys.executable, "-c", BUSY]))
            stack.callback(other.kill)
        time.sleep(0.3 * bool(busy))
        done = subprocess.run([sys.executable, "-m", __name__, str(seconds)], env=environ, text=True, check=True,
                              stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def decode(seconds: float, report: Callable[[dict], None]) -> None:
    """In a process of its own: decode for so long, and report; in time even if a step takes minutes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from spin_core.engine import Engine
    from spin_core.lab.bench.service import SmallFamily
    from spin_core.request import SamplingParams

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=4096, hidden_size=576, intermediate_size=1536, num_hidden_layers=6,
                                         num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=512))
    family = SmallFamily(model.eval(), {}, vocab_size=4096, stop_ids=(), max_context=512)
    family.decode = lambda ids: ""
    engine = Engine(family, "none", max_batch=BATCH, max_len=512, pipeline="off")
    requests = [engine.submit([1, 2, 3, 4], SamplingParams(max_new_tokens=500, stop_ids=())) for _ in range(BATCH)]
    start, before = time.perf_counter(), 0

    def finish() -> None:
        tokens = sum(len(request.output_ids) for request in requests) - before
        # of a step that does not end the rate is what it would have been with its end now
        report({"threads": torch.get_num_threads(), "tokens_per_s": max(tokens, BATCH) / (time.perf_counter() - start)})
        sys.stdout.flush()
        os._exit(0)

    threading.Timer(seconds + PATIENCE, finish).start()
    engine.step()               # it reads the prompts and warms up
    start, before = time.perf_counter(), BATCH
    while time.perf_counter() - start < seconds:
        engine.step()
    finish()


if __name__ == "__main__":
    decode(float(sys.argv[1]), lambda found: print(json.dumps(found)))
