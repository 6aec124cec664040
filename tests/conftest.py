"""Fixtures for every room's tests."""

from __future__ import annotations

import os

import pytest

if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):     # side by side: each has its share of the cores
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))

import torch        # noqa: E402: it reads the variable when it is imported

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")      # decided once, when Triton is first imported: before all else


@pytest.fixture(scope="session")
def smollm2():
    """The embedded family, fetched on first use. Mark the tests that use it with ``models``."""
    from spin_core import zoo

    return zoo.load("smollm2")
