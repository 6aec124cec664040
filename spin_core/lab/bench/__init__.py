"""Benchmarks: ``python -m spin_core bench NAME [--json OUT]``.

A benchmark is a module with ``DESCRIPTION``, ``add_arguments(parser)`` and ``run(args) -> Report``: its arguments,
cases, measurements, table and bars. A report prints a table and then one line per bar; a bar is a number that was
promised and what it came to. What benchmarks share: `rounds` compares contenders live, `contenders` are other
libraries, `timing` times calls in turns, `answers` says what drafters would draft along recorded text, `service` is a
stream of requests. Begin with `products`, the shortest. A new benchmark needs a module and its name in :data:`NAMES`.
"""

import argparse
import importlib
import operator
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from types import ModuleType

import numpy as np

from spin_core.lab import provenance
from spin_core.files import save_json

NAMES = ("peers", "products", "passes", "equality", "load", "distributed", "verify", "verify-attention", "drafters",
         "select", "select-paper", "simulate", "pipeline", "trees", "hypotheses", "spire",
         "families", "race", "gpu")

_COMPARE = {">=": operator.ge, "<=": operator.le}


@dataclass
class Bar:
    """A promise: ``value`` compared with ``target``, for example ">= 1.1". No value: it could not be measured."""

    name: str
    value: float | None
    target: str

    @property
    def holds(self) -> bool | None:
        if self.value is None:
            return None
        sign, number = self.target.split()
        return bool(_COMPARE[sign](self.value, float(number)))


@dataclass
class Report:
    """What a benchmark measured: ``rows`` of one table, ``bars``, and ``notes`` a reader needs to judge them."""

    name: str
    rows: list[dict]
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def within(self, left: Callable[[], float], cases: Sequence) -> Iterator:
        """The cases, as long as ``left()`` seconds are positive; a note says how many were left out."""
        for done, case in enumerate(cases):
            if left() <= 0:
                self.notes.append(f"out of time: {len(cases) - done} of {len(cases)} cases were left out")
                return
            yield case

    def as_dict(self) -> dict:
        return {"name": self.name, **provenance.here(), "rows": self.rows, "notes": self.notes,
                "bars": [asdict(bar) | {"holds": bar.holds} for bar in self.bars]}

    def print(self) -> None:
        columns = list(dict.fromkeys(key for row in self.rows for key in row))
        cells = [columns] + [[_text(row.get(c)) for c in columns] for row in self.rows]
        widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
        numeric = [any(isinstance(row.get(c), (int, float)) for row in self.rows) for c in columns]
        for line in cells:
            print("  ".join(t.rjust(w) if n else t.ljust(w) for t, w, n in zip(line, widths, numeric)).rstrip())
        for note in self.notes:
            print(f"note: {note}")
        for bar in self.bars:
            verdict = {True: "holds", False: "MISSED", None: "not measured"}[bar.holds]
            print(f"bar: {bar.name}: {_text(bar.value)} (target {bar.target}) {verdict}")


def _text(value) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 100 else \
        f"{value:.0f}" if isinstance(value, float) else str(value)


def half_interval(values: Sequence[float]) -> float:
    """Half of the 95 % interval of their mean; NaN for a single one."""
    return float(1.96 * statistics.stdev(values) / len(values) ** .5) if len(values) > 1 else float("nan")


def proportion_interval(hits, trials, z: float = 1.96):
    """Wilson's interval for a proportion, about 95 % at z = 1.96: ``(low, high)``; [0, 1] of 0 trials."""
    hits, trials = np.asarray(hits, float), np.asarray(trials, float)
    n = np.maximum(trials, 1)
    centre = (hits / n + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(hits / n * (1 - hits / n) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    none = trials == 0
    return np.where(none, 0, np.clip(centre - half, 0, 1)), np.where(none, 1, np.clip(centre + half, 0, 1))


def at_least(least: int) -> Callable[[str], int]:
    """An argument's type: a whole number, ``least`` or more."""
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is too small: at least {least} is needed")
        return int(text)
    return number


positive = at_least(1)


def finite(text: str) -> float:
    """An argument's type: a finite number, 0 or more."""
    if not 0 <= float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no finite number >= 0")
    return float(text)


def above_zero(text: str) -> float:
    """An argument's type: a finite number above 0. A budget of NaN seconds would never end."""
    if not 0 < float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no finite number above 0")
    return float(text)


def module(name: str) -> ModuleType:
    """The module of one benchmark."""
    return importlib.import_module(f"spin_core.lab.bench.{name.replace('-', '_')}")


def run(name: str, args) -> Report:
    """Run one benchmark, print it, and write its JSON if asked. The file appears whole or not at all."""
    report = module(name).run(args)
    report.print()
    if args.json:
        save_json(args.json, report.as_dict())
    return report
