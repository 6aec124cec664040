"""Which numbers the verify kernel loads, counted in Triton's interpreter while it runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager

import torch
from torch import Tensor
from triton.runtime import interpreter


@contextmanager
def counted(*tensors: Tensor):
    """Yields a list that holds, afterwards, how often each element of each tensor was loaded in this context.

    Raises RuntimeError when kernels are compiled and so not to be watched (without TRITON_INTERPRET=1).
    """
    import triton

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
