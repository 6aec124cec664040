"""Whether torch can compute on a device."""

from __future__ import annotations

import torch


def usable(device: str | torch.device) -> torch.device:
    """The device of that name. ValueError, with torch's reason, unless torch can compute on it."""
    try:
        found = torch.device(device)
        if found.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("this PyTorch sees no CUDA device")
        torch.zeros(1, device=found).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device {str(device)!r} cannot be used: {str(error).splitlines()[0]}") from error
    return found
