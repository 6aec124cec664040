"""Benchmarks that ran elsewhere or at another time: their JSON lies in ``figures/data``, a folder for each machine."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spin_core.lab.results import figures


@dataclass(frozen=True)
class Stored:
    """``rows`` of a benchmark from one ``machine`` (its folder's name), and the values of its report's ``bars`` by
    name; ``origin``: the provenance of the numbers; ``notes``: the report's."""

    machine: str
    rows: list[dict]
    bars: dict[str, float | None]
    origin: dict
    notes: tuple[str, ...] = ()


def stored(benchmark: str, wanted: Callable[[dict], bool] = lambda row: True,
           directory: str | Path | None = None) -> list[Stored]:
    """The ``wanted`` rows of ``bench BENCHMARK --json``, by machine: of each the newest report that has any.

    All of ``data/MACHINE/*.json`` in ``directory`` (default: the checkout's figures) is looked through, whatever the
    files are called. A report of ``bench gpu`` counts with its section of that name; one of a dry run, whose times
    mean nothing, does not.
    """
    newest: dict[str, tuple[str, Stored]] = {}
    for path in sorted((Path(directory or figures.default_directory()) / "data").glob("*/*.json")):
        report = json.loads(path.read_text("utf-8"))
        if any(note.startswith("dry run") for note in report.get("notes", ())):
            continue
        rows = [row for row in report["rows"]
                if row.get("section", report["name"]) == benchmark and wanted(row)]
        date, machine = report.get("date") or "", path.parent.name
        if rows and date >= newest.get(machine, ("",))[0]:
            bars = {bar["name"]: bar["value"] for bar in report.get("bars", ())}
            newest[machine] = date, Stored(machine, rows, bars, origin(report), tuple(report.get("notes", ())))
    return [found for _, found in newest.values()]


def newest(benchmark: str, directory: str | Path | None = None) -> Stored | None:
    """The newest report of a benchmark, of whichever machine; None where there is none."""
    return max(stored(benchmark, directory=directory), key=lambda one: one.origin.get("date") or "", default=None)


def origin(report: dict) -> dict:
    """The provenance of a stored report's numbers, for the series of a figure."""
    return {key: value for key, value in report.items() if key not in ("name", "rows", "notes", "bars")}
