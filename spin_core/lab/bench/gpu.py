"""Everything worth measuring on a GPU, in one command that needs no network and keeps to a budget of seconds.

A benchmark takes part by having a function ``on_gpu(settings) -> Report``: it measures the most important
things first and stops when ``settings.left()`` is used up. Two more sections make sense on a GPU only: CUDA graphs
for drafting (:mod:`spin_core.lab.bench.gpu_drafting`), and the system at the shape of LLaMA-7B
(:mod:`spin_core.lab.bench.gpu_system`). The JSON of ``--json`` is what figures read: put it into
``figures/data/<card>/gpu.json``.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from spin_core.lab import bench
from spin_core.lab.bench import Bar, Report, above_zero
from spin_core.lab.simulate.profiles import Model

DESCRIPTION = ("all that has to be measured on a GPU, in one run: the verify kernel, attention, CUDA-graphed drafting, "
               "and the system at LLaMA-7B shape (random weights, acceptance replayed from a recording). Put its JSON "
               "into figures/data/<card>/gpu.json")
OWN = ("drafting", "system")        # sections that are no benchmarks
WEIGHTS = {"system": 3}             # where time is shared out; the other sections count once
TINY = Model("tiny", 2, 32, 4, 2, 8, 48, vocab=67, note="for dry runs")
FAILS = ": runs at all"             # the bar of what did not
T = TypeVar("T")


@dataclass
class Settings:
    """``left()`` seconds remain to a section. ``dry``: tiny sizes on a CPU, kernels interpreted; times mean nothing."""

    device: str
    dry: bool
    left: Callable[[], float]


def sections() -> dict[str, Callable[[Settings], Report]]:
    """The benchmarks that have a part for the GPU, and the sections of this one's own."""
    modules = {name: bench.module(name) for name in bench.NAMES if name != "gpu"}
    modules |= {name: bench.module(f"gpu-{name}") for name in OWN}
    return {name: module.on_gpu for name, module in modules.items() if hasattr(module, "on_gpu")}


def attempt(report: Report, name: str, call: Callable[[], T]) -> T | None:
    """What ``call`` returns; None where it fails or does not fit into memory: ``report`` then says so. Frees memory."""
    try:
        return call()
    except torch.OutOfMemoryError:
        report.notes.append(f"{name}: left out, it does not fit into memory")
    except Exception as error:          # one part that fails must not cost the others their time on the card
        report.notes.append(f"{name}: FAILED: {type(error).__name__}: {str(error)[:300]}")
        report.bars.append(Bar(name + FAILS, 0.0, ">= 1"))
    finally:
        if torch.cuda.is_available():
            gc.collect()
            torch.cuda.empty_cache()
    return None


def add_arguments(parser) -> None:
    parser.add_argument("--only", nargs="+", metavar="SECTION",
                        help="these sections (default: verify, verify-attention, drafting, system)")
    parser.add_argument("--budget-seconds", type=above_zero, default=480, metavar="S",
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
        mine, *others = (WEIGHTS.get(other, 1) for other in chosen[done:])
        stop = time.monotonic() + max(0.0, end - time.monotonic()) * mine / (mine + sum(others))
        settings = Settings("cpu" if args.dry_run else "cuda", args.dry_run, lambda: stop - time.monotonic())
        report = attempt(whole, name, lambda: known[name](settings))
        if report is None:
            continue
        whole.rows += [{"section": name, **row} for row in report.rows]
        # times of a dry run mean nothing, but what fails there fails
        whole.bars += [bar for bar in report.bars if not args.dry_run or bar.name.endswith(FAILS)]
        whole.notes += [f"{name}: {note}" for note in report.notes]
    return whole
