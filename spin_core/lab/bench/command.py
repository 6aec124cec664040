"""``python -m spin_core bench NAME [--json OUT]``: the benchmarks of :data:`spin_core.lab.bench.NAMES`."""

from argparse import ArgumentParser, Namespace

from spin_core.lab import bench


def add_arguments(parser: ArgumentParser) -> None:
    benches = parser.add_subparsers(dest="name", required=True, parser_class=ArgumentParser)
    for name in bench.NAMES:
        module = bench.module(name)
        sub = benches.add_parser(name, help=module.DESCRIPTION, description=module.DESCRIPTION)
        sub.add_argument("--json", metavar="OUT", help="write the numbers, with machine, versions and commit, here")
        module.add_arguments(sub)


def run(args: Namespace) -> int:
    """Run one; 1 if it misses a bar."""
    return 1 if any(bar.holds is False for bar in bench.run(args.name, args).bars) else 0
