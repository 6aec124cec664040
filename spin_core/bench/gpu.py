"""Everything worth measuring on a GPU, in one command that needs no network and keeps to a budget of seconds.

A benchmark takes part by having a function ``on_gpu(settings) -> Report``: it measures the most important
things first and stops when ``settings.left()`` is used up. The JSON of ``--json`` is what figures read: put
it into ``figures/data/<card>/gpu.json``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from spin_core import bench
from spin_core.bench import Report

DESCRIPTION = "all that has to be measured on a GPU, in one run: put its JSON into figures/data/<card>/gpu.json"


@dataclass
class Settings:
    """``left()`` seconds remain to a section. ``dry``: tiny sizes on a CPU, kernels interpreted; times mean nothing."""

    device: str
    dry: bool
    left: Callable[[], float]


def sections() -> dict[str, Callable[[Settings], Report]]:
    """The benchmarks that have a part for the GPU."""
    modules = {name: bench.module(name) for name in bench.NAMES if name != "gpu"}
    return {name: module.on_gpu for name, module in modules.items() if hasattr(module, "on_gpu")}


def add_arguments(parser) -> None:
    parser.add_argument("--only", nargs="+", metavar="SECTION", help="these sections (default: all)")
    parser.add_argument("--budget-seconds", type=float, default=480, metavar="S",
                        help="stop starting new cases after this time, shared by the sections (default 480)")
    parser.add_argument("--dry-run", action="store_true",
                        help="try the command without a GPU: tiny sizes, kernels interpreted, times mean nothing "
                             "(set TRITON_INTERPRET=1)")


def run(args) -> Report:
    known = sections()
    unknown = [name for name in args.only or () if name not in known]
    if unknown:
        raise ValueError(f"bench gpu: unknown section {', '.join(unknown)}; known: {', '.join(known)}")
    if not args.dry_run and not torch.cuda.is_available():
        raise ValueError("bench gpu needs a CUDA device, and torch sees none; --dry-run tries the command without one")
    chosen = args.only or list(known)
    end = time.monotonic() + args.budget_seconds
    whole = Report("gpu", [], notes=[f"one run of {', '.join(chosen)}, at most {args.budget_seconds:.0f} s"])
    if args.dry_run:
        whole.notes.append("dry run: tiny sizes on a CPU, these times mean nothing")
    for done, name in enumerate(chosen):
        stop = time.monotonic() + max(0.0, end - time.monotonic()) / (len(chosen) - done)
        settings = Settings("cpu" if args.dry_run else "cuda", args.dry_run, lambda: stop - time.monotonic())
        try:
            report = known[name](settings)
        except Exception as error:          # one section's trouble must not cost the others their time on the card
            whole.notes.append(f"{name}: FAILED: {type(error).__name__}: {str(error)[:300]}")
            whole.bars.append(bench.Bar(f"{name}: runs at all", 0.0, ">= 1"))
            continue
        whole.rows += [{"section": name, **row} for row in report.rows]
        if not args.dry_run:
            whole.bars += report.bars
        whole.notes += [f"{name}: {note}" for note in report.notes]
    return whole
