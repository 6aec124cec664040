"""Lesson 6's numbers: what the verify kernel loads, counted in Triton's interpreter, and the time of a verification."""

from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from spin_core.lab.bench.verify_cases import case, seconds_on_cpu
from spin_core.lab.results.stored import stored


@contextmanager
def counted(*tensors: Tensor):
    """Yields a list that holds, afterwards, how often each element of each tensor was loaded in this context.

    Raises RuntimeError when kernels are compiled and so not to be watched (without TRITON_INTERPRET=1).
    """
    import triton
    from triton.runtime import interpreter

    if not triton.knobs.runtime.interpret:
        raise RuntimeError("loads can be counted in Triton's interpreter only: set TRITON_INTERPRET=1 before triton is "
                           "imported")
    loads: list = []
    builder = interpreter.InterpreterBuilder
    plain = builder.create_masked_load      # plain loads come to it too

    def masked(self, pointers, mask, *rest):
        loads.append(pointers.data.flatten()[mask.data.flatten()].astype("int64"))
        return plain(self, pointers, mask, *rest)

    builder.create_masked_load = masked
    counts: list[Tensor] = []
    try:
        yield counts
    finally:
        builder.create_masked_load = plain
    touched = torch.cat([torch.from_numpy(x) for x in loads]) if loads else torch.empty(0, dtype=torch.int64)
    for x in tensors:
        begin, end = x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()
        inside = touched[(touched >= begin) & (touched < end)]
        counts.append(((inside - begin) // x.element_size()).bincount(minlength=x.numel()).view(x.shape))


def rows_read(call: Callable[[], object], *tensors: Tensor) -> list[list[float]]:
    """Runs ``call``; per tensor ``[R, V]``, how often each row was read, as loads over its V elements."""
    with counted(*tensors) as counts:
        call()
    return [(c.sum(-1) / c.shape[-1]).tolist() for c in counts]


@torch.inference_mode()
def on_cpu(cases: list[tuple[int, int]], repeats: int) -> dict[str, list[float]]:
    """Median milliseconds of each way to verify, for each (vocabulary, batch), four drafts each."""
    seconds = [seconds_on_cpu(case(batch, vocab, torch.float32, "cpu", seed=0), repeats) for vocab, batch in cases]
    names = {"reference": "torch reference", "textbook": "textbook loop", "loop": "loop with our draws"}
    return {name: [one[way] * 1e3 for one in seconds] for way, name in names.items()}


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
