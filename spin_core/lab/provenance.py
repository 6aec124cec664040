"""Where a measured number comes from: the machine, the versions, the commit, the time."""

import functools
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from spin_core import threads

ROOT = Path(__file__).resolve().parent.parent.parent
"""The checkout (or, for an installed copy, the folder that holds the package)."""

PACKAGES = ("spin-core", "torch", "triton", "transformers", "tokenizers", "numpy")
"""Packages whose version can change a measured number."""

CODE = ("spin_core", "notebooks", "pyproject.toml")
"""Paths whose uncommitted changes make a commit "dirty": figures are results and do not count."""


def here() -> dict[str, Any]:
    """Describe this machine and this code, as plain JSON values.

    Returns a new dict with the keys

    - ``machine``  operating system and architecture, e.g. ``"Linux x86_64"`` (never a host name);
    - ``cpu``      model name of the processor; ``cpu_kind``: its family, model and widest vectors, for clouds give very
      different processors one name (None where the system does not tell); ``cores``: how many this process may
      use; ``threads``: how many torch uses in one operation, ``threads_set``: what the environment says of them, and
      whether we or the user set it (:mod:`spin_core.threads`); ``memory_gib``: main memory;
    - ``bf16_drafts`` whether drafters multiply in bf16 here unless an engine is told otherwise;
    - ``gpu``      name of the first CUDA device and the CUDA version that torch was built with, or None;
    - ``versions`` of Python and of every package in `PACKAGES`, None where one is not installed;
    - ``commit``   git commit of the checkout when this module was imported, with ``-dirty`` when the code differed
      from it (or git could not tell), or None;
    - ``date``     UTC, ISO 8601, to the second.
    """
    import torch

    from spin_core.runtime.linear import has_bf16

    return {
        **_hardware(),
        "threads": torch.get_num_threads(),
        "threads_set": threads_set(),
        "bf16_drafts": has_bf16(),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "commit": STARTED_FROM,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def threads_set(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the environment says of threads, and whether we said so: {variable: "value (spin_core | environment)"}."""
    ours = environ.get(threads.OURS, "").split()
    return {name: f"{environ[name]} ({'spin_core' if name in ours else 'environment'})"
            for name in (*threads.COUNTS, *threads.WAITING) if name in environ}


def version(package: str) -> str | None:
    """Installed version of a distribution, or None. ``spin-core`` run from a checkout reports its own."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        if package == "spin-core":
            from spin_core import __version__

            return __version__
        return None


def commit(root: Path = ROOT) -> str | None:
    """Commit of the git checkout at ``root``; None if ``root`` is not the top of one, or git is missing."""
    top = _output("git", "-C", str(root), "rev-parse", "--show-toplevel")
    # an installed copy may sit in a virtual environment inside somebody else's repository
    if not top or Path(top).resolve() != Path(root).resolve():
        return None
    head = _output("git", "-C", str(root), "rev-parse", "HEAD")
    # "-b" puts a line first, so nothing at all means that git failed
    told = _output("git", "-C", str(root), "status", "--porcelain", "-b", "--untracked-files=normal", "--", *CODE)
    return f"{head}-dirty" if head and len(told.splitlines()) != 1 else head or None


@functools.cache
def _hardware() -> dict[str, Any]:
    import psutil
    import torch

    gpu = None
    if torch.cuda.is_available():
        gpu = f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}"
    try:
        cores = len(os.sched_getaffinity(0))     # what this process may use; not on macOS
    except AttributeError:
        cores = os.cpu_count()
    return {
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": threads.cpu_name(),
        "cpu_kind": _cpu_kind(),
        "cores": cores,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": gpu,
    }


def _cpu_kind() -> str | None:
    """For example "family 23, model 1, avx2"."""
    about = threads.cpuinfo()
    if "cpu family" not in about:
        return None
    flags = about.get("flags", "").split()
    vectors = [f", {name}" for name in ("avx512f", "avx2", "avx") if name in flags][:1]
    return f"family {about['cpu family']}, model {about.get('model')}{''.join(vectors)}"


def _output(*command: str) -> str:
    """Standard output of a command, stripped; empty if it fails, hangs or does not exist."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


STARTED_FROM = commit()
"""What ran is what was there at the start, whatever is committed meanwhile."""
