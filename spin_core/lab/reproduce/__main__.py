"""The command ``python -m spin_core.lab.reproduce``."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from spin_core.lab.results import figures
from spin_core.lab.reproduce import ROOT, NotebookError
from spin_core.lab.reproduce import comparison
from spin_core.lab.reproduce.notebooks import discover
from spin_core.lab.reproduce.runner import CELL_SECONDS, run
from spin_core.lab.reproduce.storing import store


def default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _table(directory: Path) -> int:
    """Write the README's table; ``--store`` does so too."""
    try:
        comparison.write(directory=directory)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def main(arguments: list[str] | None = None, *, notebooks: Path = ROOT / "notebooks") -> int:
    parser = argparse.ArgumentParser(
        prog="python -m spin_core.lab.reproduce", description="Run the notebooks in order.")
    parser.add_argument("--profile", choices=list(CELL_SECONDS), default="default",
                        help="how much to compute (default: %(default)s)")
    parser.add_argument("--only", metavar="NAME",
                        help="one notebook: its name, the start of it, or its number")
    parser.add_argument("--device",
                        help="cpu, cuda, cuda:1, mps (default: cuda where there is one, else cpu)")
    parser.add_argument("--fresh", action="store_true", help="run again what is finished")
    parser.add_argument("--output", type=Path, default=ROOT, metavar="DIR",
                        help="where runs/ and figures/ go (default: the checkout)")
    parser.add_argument("--store", action="store_true",
                        help="put the outputs of the default profile into the notebooks themselves")
    parser.add_argument("--table", action="store_true",
                        help="only write the README's table anew, from the numbers beside the figures")
    options = parser.parse_args(arguments)
    if options.table:
        return _table(options.output / "figures")
    if options.store and options.profile != "default":
        parser.error("--store keeps the outputs of the default profile; leave --profile out")
    try:
        paths = discover(notebooks, options.only)
        if not paths:
            raise ValueError(f"no notebooks in {notebooks}")
        device = options.device or default_device()
        if device != "cpu":
            from spin_core.zoo.device import usable

            usable(device)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2

    output = options.output.resolve()
    print(f"{len(paths)} notebook{'s'[:len(paths) > 1]}, profile {options.profile}, device {device}", flush=True)
    try:
        jobs = run(paths, output, profile=options.profile, device=device, fresh=options.fresh)
    except KeyboardInterrupt:
        print("interrupted; finished notebooks are kept, the same command goes on from here", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:      # the state of earlier runs, or where to write; notebooks fail alone
        print(f"error: {error}", file=sys.stderr)
        return 2

    failed = {job.name: job.error for job in jobs if job.status == "failed"}
    if options.store:
        for job in jobs:
            if job.status != "failed":
                try:
                    store(job.path, output / "runs" / "default" / f"{job.name}.ipynb")
                except NotebookError as error:
                    failed[job.name] = f"not stored: {error}"
    try:
        print(f"all figures: {figures.index(output / 'figures')}")
    except ValueError as error:
        failed["figures/index.html"] = str(error)
    if options.store and output == ROOT and _table(output / "figures"):
        failed["README.md"] = "its table was not written"
    print(f"executed notebooks: {output / 'runs' / options.profile}")
    if failed:
        print(f"\n{len(failed)} failed:", file=sys.stderr)
        for name, error in failed.items():
            print(f"  {name}: {error.splitlines()[0]}", file=sys.stderr)     # the rest stands further up
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)       # a polite kill ends the kernel, too
    sys.exit(main())
