"""Numbers between host and device without a wait.

An ordinary copy from or to a CUDA device makes the host wait until the device has done all it was asked for before. A
copy through page-locked memory is a piece of work like any other: it is queued, and the host goes on.
"""

import time

import torch
from torch import Tensor


def upload(values: list, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """``values`` as a tensor on ``device``; without a wait for its arrival."""
    there = torch.device(device)
    here = torch.tensor(values, dtype=dtype, pin_memory=there.type == "cuda")
    return here.to(there, non_blocking=True)


class Download:
    """A tensor on its way to the host. ``read()`` waits, if it has not arrived yet; until then nothing does."""

    def __init__(self, tensor: Tensor) -> None:
        self._event = None
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.current_stream(tensor.device).record_event()
        else:
            self._host = tensor

    def read(self) -> list:
        if self._event:
            self._event.synchronize()
        return self._host.tolist()


class Mark:
    """A moment in what a device works off, or on a CPU just now."""

    def __init__(self, device: torch.device) -> None:
        self.host, self._event = time.perf_counter(), None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record(torch.cuda.current_stream(device))

    def until(self, later: "Mark") -> float:
        """Seconds from here to a ``later`` mark that the device has passed."""
        return self._event.elapsed_time(later._event) / 1e3 if self._event else later.host - self.host
