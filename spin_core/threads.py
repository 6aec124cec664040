"""How many threads torch computes with, and how idle ones wait: set before torch is loaded, on any path to it.

Threads that share an operation meet at barriers. By default the early ones wait there *actively*: the fastest way on a
quiet machine, and by far the slowest beside other programs, where the last thread waits for a core while the others
burn theirs. (The products of one decoding step, two threads, two cores, 13 other programs: 1,000 ms; with sleeping
threads 40 ms, as with one thread.) So idle threads sleep, and there are as many threads as free cores. What the
environment already says stays as it is: ``OMP_NUM_THREADS=4 python ...`` computes with four threads.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}
"""A thread looks a thousand times, for microseconds, before it sleeps: that bridges the gaps between products."""
COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
OURS = "SPIN_SET_THREADS"
"""Names which variables this module has set: a child process inherits them, and decides anew."""
SAMPLE = 0.06           # seconds over which other programs are watched


def prepare(environ: dict[str, str] = os.environ) -> None:
    """Set the variables that torch's threads read when torch is loaded. Does nothing where torch is loaded already."""
    if "torch" in sys.modules:
        return
    inherited = environ.pop(OURS, "").split()
    told = any(name in environ for name in (*WAITING, "KMP_BLOCKTIME"))     # how idle threads are to wait
    chosen = {name: value for name, value in WAITING.items() if name in inherited or not told}
    if all(name in inherited or name not in environ for name in COUNTS):
        chosen["OMP_NUM_THREADS"] = str(free_cores())
    environ.update(chosen)
    if chosen:
        environ[OURS] = " ".join(chosen)


def free_cores() -> int:
    """Cores that this process may use and that other programs leave idle now; at least 1."""
    import psutil

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = min(allowed, quota())
    if limit < 2:
        return 1
    idle = (os.cpu_count() or 1) * (1 - psutil.cpu_percent(SAMPLE) / 100)
    return max(1, min(int(limit), round(idle)))


def quota(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Cores that the container's CPU quota comes to; infinity where there is none."""
    try:
        files = (root / "cpu.max",) if (root / "cpu.max").exists() else \
            (root / "cpu" / "cpu.cfs_quota_us", root / "cpu" / "cpu.cfs_period_us")
        most, period = " ".join(file.read_text() for file in files).split()
        return int(most) / int(period) if most.isdigit() else float("inf")      # "max" or -1: no limit
    except (OSError, ValueError):
        return float("inf")


def cpu_name() -> str:
    """The processor's model, or at least its architecture."""
    name = cpuinfo().get("model name")
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        name = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return name or platform.processor() or platform.machine()


def cpuinfo() -> dict[str, str]:
    """What Linux tells of the first processor; empty elsewhere."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
