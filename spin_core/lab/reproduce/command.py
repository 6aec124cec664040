"""The command ``python -m spin_core reproduce``."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from spin_core.lab.reproduce import ROOT, NotebookError, comparison
from spin_core.lab.reproduce.notebooks import discover
from spin_core.lab.reproduce.runner import CELL_SECONDS, Job, run_all
from spin_core.lab.reproduce.storing import store
from spin_core.lab.reproduce.index import index

NOTEBOOKS = ROOT / "notebooks"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--profile", choices=list(CELL_SECONDS), default="default",
                        help="how much to compute (default: %(default)s)")
    parser.add_argument("--only", metavar="NAME", help="one notebook: its name, the start of it, or its number")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, mps (default: cuda where there is one, else cpu)")
    parser.add_argument("--fresh", action="store_true", help="run finished notebooks again")
    parser.add_argument("--output", type=Path, default=ROOT, metavar="DIR",
                        help="where runs/ and figures/ go (default: the checkout)")
    parser.add_argument("--store", action="store_true",
                        help="put the outputs of the default profile into the notebooks themselves")
    parser.add_argument("--table", action="store_true",
                        help="only write the README's table anew, from the numbers beside the figures")


def run(args: Namespace) -> int:
    """Do what the command line asks; returns its exit status. Raises ValueError or OSError, before any notebook runs,
    for what cannot be done as asked, and KeyboardInterrupt where the run is interrupted."""
    if args.table:
        comparison.write(directory=args.output / "figures")
        return 0
    if args.store and args.profile != "default":
        raise ValueError("--store keeps the outputs of the default profile; leave --profile out")
    paths = discover(NOTEBOOKS, args.only)
    if not paths:
        raise ValueError(f"no notebooks in {NOTEBOOKS}")
    device, output = _device(args.device), args.output.resolve()
    print(f"{len(paths)} notebook{'s'[:len(paths) > 1]}, profile {args.profile}, device {device}", flush=True)
    try:
        jobs = run_all(paths, output, profile=args.profile, device=device, fresh=args.fresh)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("finished notebooks are kept, the same command goes on from here") from None
    failed = {job.name: job.error for job in jobs if job.status == "failed"}
    if args.store:
        failed |= _store(jobs, output)
    try:
        print(f"all figures: {index(output / 'figures')}")
        if args.store and output == ROOT:
            comparison.write(directory=output / "figures")
    except (ValueError, OSError) as error:
        failed["figures and table"] = str(error)
    print(f"executed notebooks: {output / 'runs' / args.profile}")
    if failed:
        print(f"\n{len(failed)} failed:", file=sys.stderr)
        for name, error in failed.items():
            print(f"  {name}: {error.splitlines()[0]}", file=sys.stderr)     # the whole error stands further up
    return 1 if failed else 0


def _device(asked: str | None) -> str:
    """The device that was asked for, or the best one. Raises ValueError for one that cannot be used."""
    import torch

    from spin_core.zoo.huggingface import usable

    device = asked or ("cuda" if torch.cuda.is_available() else "cpu")
    if device != "cpu":
        usable(device)
    return device


def _store(jobs: list[Job], output: Path) -> dict[str, str]:
    """Put the outputs of the jobs that finished into their notebooks; name -> why not."""
    failed = {}
    for job in jobs:
        if job.status != "failed":
            try:
                store(job.path, output / "runs" / "default" / f"{job.name}.ipynb")
            except NotebookError as error:
                failed[job.name] = f"not stored: {error}"
    return failed
