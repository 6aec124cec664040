"""Numbers of the lesson on the verify kernel: timings made here, and those a GPU left in ``figures/data``."""

from __future__ import annotations

from pathlib import Path

import torch

from spin_core.lab.bench.timing import interleaved
from spin_core.lab.bench.verify import case, position_loop, textbook_loop
from spin_core.lab.lessons.stored import stored
from spin_core.verify import chain


@torch.inference_mode()
def on_cpu(cases: list[tuple[int, int]], repeats: int) -> dict[str, list[float]]:
    """Median milliseconds of each way to verify, for each (vocabulary, batch), four drafts each."""
    ways: dict[str, list[float]] = {"torch reference": [], "textbook loop": [], "loop with our draws": []}
    for vocab, batch in cases:
        inputs = case(batch, vocab, torch.float32, "cpu", seed=0)
        seconds = interleaved({"torch reference": lambda: chain.verify_chain(*inputs),
                               "textbook loop": lambda: textbook_loop(*inputs[:3]),
                               "loop with our draws": lambda: position_loop(*inputs)}, repeats)
        for way, values in ways.items():
            values.append(seconds[way] * 1e3)
    return ways


def on_gpus(directory: str | Path | None = None, drafts: str = "all accepted", dtype: str = "bfloat16") -> list[dict]:
    """Series of the ``bench gpu`` runs that are stored: time over the floor of each way, by case.

    Each has label, x (case), y (times the floor, None where a way did not run) and the run's provenance.
    """
    series = []
    for found in stored("verify", lambda row: (row.get("drafts"), row.get("dtype")) == (drafts, dtype), directory):
        rows = sorted(found.rows, key=lambda row: (row["vocab"], row["batch"]))
        ways = dict.fromkeys(key for row in rows for key in row if key.endswith("_us") and key != "floor_us")
        for way in ways:
            name = way.removesuffix("_us").replace("_", ", ")
            series.append(dict(label=f"{name}, {found.machine}", x=[f"{r['vocab']} × {r['batch']}" for r in rows],
                               y=[r[way] / r["floor_us"] if r.get(way) else None for r in rows],
                               provenance=found.origin))
    return series
