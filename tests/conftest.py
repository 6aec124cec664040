"""Fixtures for every room's tests."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")      # decided once, when Triton is first imported: before all else


@pytest.fixture(scope="session")
def smollm2():
    """The embedded family, fetched on first use. Mark the tests that use it with ``models``."""
    from spin_core import zoo

    return zoo.load("smollm2")
