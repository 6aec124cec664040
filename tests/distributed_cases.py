"""What the ranks of test_distributed serve, and the single process that they are compared with."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import traceback
import warnings
from pathlib import Path

import tiny
import torch

from spin_core import distributed
from spin_core.engine import Engine
from spin_core.request import SamplingParams
from spin_core.runtime.ranks import own_rank, processes
from spin_core.select import policies
from spin_core.zoo import huggingface

PROMPTS = [[1, 4, 9], [7], list(range(20)), [5, 5], [9, 8, 7, 6]]
GREEDY = [SamplingParams(max_new_tokens=8, stop_ids=())] * len(PROMPTS)
MIXED = [SamplingParams(temperature=float(k > 0), top_k=k, seed=k, max_new_tokens=8, stop_ids=())
         for k in (0, 5, 9, 0, 30)]
TREE = "tree:near,ngram:2,1"
SETTINGS = {        # name: settings of the engine, and whether some requests sample
    **{f"selector {name}": ({"selector": name}, False) for name in (*policies.names()[:-1], "fixed:subset")},
    **{f"pipeline {p}": ({"drafter": "near", "pipeline": p}, True) for p in ("off", 1, 2, 3, "auto", "async")},
    **{f"drafter {name}": ({"drafter": name}, True)
       for name in (TREE, "subset", "none", "sparse:near:8", "ngram+near", "vote:near,subset,ngram")},
    "capacities": ({"selector": "spin", "capacities": {"near": 1, "subset": 1}}, False),
    "slow switching": ({"selector": "spin", "fast_switching": False}, False),
    "padded": ({"drafter": "near", "verification": "padded"}, True),
    "decomposed": ({"drafter": "near", "verification": "decomposed", "pipeline": 2}, True),
}
SOME = ["selector spin", "selector minions", "pipeline off", "pipeline 2", "pipeline auto", "pipeline async",
        f"drafter {TREE}", "drafter subset", "drafter sparse:near:8", "drafter vote:near,subset,ngram", "capacities"]


def serve(family, name: str) -> list[list[int]]:
    """The texts of one setting."""
    settings, sampled = SETTINGS[name]
    with Engine(family, max_batch=3, prefill_chunk=8, **settings) as engine:
        requests = engine.generate(PROMPTS, MIXED if sampled else GREEDY)
        assert not engine.retired, engine.retired
        return [r.output_ids for r in requests]


def cancelled(family) -> list[list[int]]:
    """The texts of the requests that stay, while others are cancelled in the queue and in flight."""
    with Engine(family, max_batch=3, pipeline=2) as engine:
        requests = [engine.submit(p, GREEDY[0]) for p in PROMPTS]
        engine.cancel(requests[4])
        engine.step()
        engine.cancel(requests[1])
        while not all(r.finished for r in requests):
            engine.step()
        tiny.assert_idle(engine)
        return [requests[i].output_ids for i in (0, 2, 3)]


def load(folder: str, parts: int):
    """The tiny family, its target loaded as this rank's share."""
    if own_rank() >= parts or parts == 1:
        target = tiny.family().target
    else:
        target = huggingface.load_model(folder, "target", torch.device("cpu"), torch.float64, parts)
    return tiny.TinyFamily(target, {name: tiny.family().drafters[name] for name in ("near", "subset")})


def kill(family, rank: int, pids: dict[int, int], drafter: str | None) -> dict:
    """Serve while that rank is killed; what became of the requests."""
    with warnings.catch_warnings(record=True) as caught, Engine(family, drafter, max_batch=2, pipeline=2) as engine:
        warnings.simplefilter("always")
        first = engine.generate(PROMPTS[:2], GREEDY[:2])
        requests = [engine.submit(p, GREEDY[0].with_(max_new_tokens=60)) for p in PROMPTS]
        for _ in range(4):
            engine.step()
        os.kill(pids[rank], signal.SIGKILL)
        start, raised = time.monotonic(), ""
        while not all(r.finished for r in requests):
            try:
                engine.step()
            except Exception as error:
                raised = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - start
        late = engine.generate([[1, 2]], GREEDY[:1])[0]
        return {"seconds": seconds, "raised": raised, "kept": [r.output_ids for r in first],
                "errors": [r.error for r in requests], "texts": [r.output_ids for r in requests],
                "late": late.error, "warnings": [str(w.message) for w in caught]}


def rank(folder: str, environ: dict[str, str], parts: int) -> None:
    """A process of the group: what rank 0 found is in found.json, why a rank failed in a file of its own."""
    os.environ.update(environ)
    torch.set_num_threads(1)
    threading.Timer(400, lambda: os._exit(9)).start()       # whatever hangs ends
    (Path(folder) / f"pid{own_rank()}").write_text(str(os.getpid()))
    try:
        family = distributed.join(load(folder, parts))
        pids = {other: int((Path(folder) / f"pid{other}").read_text()) for other in range(processes())}
        names = SETTINGS if processes() == parts else SOME
        found = {"places": family.ranks.places, "texts": {name: serve(family, name) for name in names},
                 "cancelled": cancelled(family), "killed": {}}
        for other in range(processes() - 1, 0, -1):
            found["killed"][other] = kill(family, other, pids, "near" if other >= parts else "none")
        (Path(folder) / "found.json").write_text(json.dumps(found))
    except Exception:
        (Path(folder) / f"failed{own_rank()}").write_text(traceback.format_exc())
    finally:
        os._exit(0)
