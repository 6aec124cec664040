"""What it costs that rank 0 decides for all: the messages of a step, and drafts that come from another process.

Two processes on this machine, over loopback. First both share a target: its passes are computed by each process for
itself, in lockstep and without messages, and then as the engine does, led by rank 0. Then the second process drafts:
what a draft takes beyond the drafter's own time is the way there and back.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

from spin_core.lab.bench import Bar, Report, positive

DESCRIPTION = "an engine over two processes: what a step costs beyond its passes"
BATCH, GAMMA, LIMIT = 8, 4, 240.0


def add_arguments(parser) -> None:
    parser.add_argument("--passes", type=positive, default=100, help="of each kind (default 100)")


def run(args) -> Report:
    rows = _measure("target", args.passes) + _measure("drafter", args.passes)
    alone, led = rows[0]["median_ms"], rows[1]["median_ms"]
    return Report("distributed", rows, [
        Bar("ms to tell the other rank of a step", rows[1]["messages_ms"], "<= 0.5"),
        Bar("a draft's way to another rank and back over the drafter's own time",
            rows[2]["messages_ms"] / (rows[2]["median_ms"] - rows[2]["messages_ms"]), "<= 0.1")], [
        f"a random model of 6 layers in float32, batch {BATCH}, {GAMMA} drafted tokens; medians of {args.passes}; load "
        f"of the machine: {os.getloadavg()[0]:.1f}",
        f"a pass led by rank 0 over one in lockstep: {led / alone:.3f}, measured one after the other"])


def run_ranks(processes: int, command: Sequence[str], environ: Mapping[str, str], limit: float | None = None):
    """Run Python with ``command`` in so many processes on this machine, as torchrun starts them; what rank 0 prints,
    read as JSON. When it has ended, so have the others.

    ``environ``: theirs; ``limit``: seconds. RuntimeError with rank 0's last words if it fails.
    """
    ranks = [subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env={**environ, **own}) for own in environments(processes)]
    try:
        found, errors = ranks[0].communicate(timeout=limit)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if ranks[0].returncode:
        raise RuntimeError(f"{' '.join(command)}: {errors[-2000:]}")
    return json.loads(found)


def environments(processes: int) -> list[dict[str, str]]:
    """What torchrun tells each of so many processes on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]


def _measure(what: str, passes: int) -> list[dict]:
    with tempfile.TemporaryDirectory() as folder:
        if what == "target":
            _model().save_pretrained(folder)
        return run_ranks(2, ["-m", __name__, what, folder, str(passes)], os.environ | {"OMP_NUM_THREADS": "1"}, LIMIT)


def _model():
    from spin_core.lab.bench.service import llama

    return llama(4096, 512, 6, 8, 4)


def _timed(call: Callable[[], None], times: int) -> float:
    """The median in ms."""
    from spin_core.lab.bench.timing import interleaved

    return 1e3 * interleaved({"": call}, times)[""]


def _target(folder: str, passes: int) -> list[dict]:
    """On each rank: passes in lockstep, then led."""
    import torch

    from spin_core import distributed
    from spin_core.lab.bench.service import SmallFamily
    from spin_core.runtime import ModelRunner
    from spin_core.runtime.shared import target_runner
    from spin_core.zoo.huggingface import load_model

    model = load_model(folder, "target", torch.device("cpu"), torch.float32, 2)

    def verify(runner) -> None:
        slots, rows = list(range(BATCH)), BATCH * (GAMMA + 1)
        runner.forward(slots, [GAMMA + 1] * BATCH, [1] * rows, list(range(rows)))
        for slot in slots:
            runner.cache.truncate(slot, 0)

    alone = ModelRunner(model, BATCH, 64)
    lockstep = _timed(lambda: verify(alone), passes)
    family = distributed.join(SmallFamily(model, {}, vocab_size=4096, stop_ids=(), max_context=512))
    led, tell, telling = target_runner(family, BATCH, 64), family.ranks._tell, []

    def timed_tell(*message) -> None:
        start = time.perf_counter()
        tell(*message)
        telling.append(1e3 * (time.perf_counter() - start))

    family.ranks._tell = timed_tell
    together = _timed(lambda: verify(led), passes)
    return [{"what": "a pass, both ranks in lockstep", "median_ms": lockstep},
            {"what": "a pass, led by rank 0", "median_ms": together, "messages_ms": statistics.median(telling)}]


def _drafter(folder: str, passes: int) -> list[dict]:
    """Rank 1 drafts: sampled drafts, whose distributions travel, too."""
    from spin_core import distributed
    from spin_core.draft import pool
    from spin_core.lab.bench.service import SmallFamily
    from spin_core.request import Request, SamplingParams
    from spin_core.zoo import DraftModel

    model = _model()
    family = distributed.join(SmallFamily(model, {"small": DraftModel("small", model, None, 512)}, vocab_size=4096,
                                          stop_ids=(), max_context=512))
    drafter = pool.build("small", family, BATCH, 512, None)
    requests = [Request([1, 2, 3], SamplingParams(temperature=1.0, seed=i), slot=i) for i in range(BATCH)]
    elsewhere = []

    def draft() -> None:
        elsewhere.append(1e3 * drafter.propose(requests, [GAMMA] * BATCH).seconds)
        for request in requests:
            request.output_ids.append(1)
            drafter.rollback(request.slot, request.length - 1)

    whole = _timed(draft, passes)
    own = statistics.median(elsewhere[1:])
    return [{"what": "a draft from another rank", "median_ms": whole, "messages_ms": whole - own}]


if __name__ == "__main__":
    print(json.dumps({"target": _target, "drafter": _drafter}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))
