"""Benchmarks that ran on other machines: their JSON lies in ``figures/data``, a folder for each machine."""

from __future__ import annotations

import json

from spin_core import figures


def stored_benchmark(name: str) -> dict:
    """The report of a benchmark as its ``--json`` wrote it, by "machine/name"."""
    return json.loads((figures.default_directory() / "data" / f"{name}.json").read_text("utf-8"))


def origin(report: dict) -> dict:
    """The provenance of a stored report's numbers, for the series of a figure."""
    return {key: value for key, value in report.items() if key not in ("name", "rows", "notes", "bars")}
