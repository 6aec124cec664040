"""Fixtures for every room's tests."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def smollm2():
    """The embedded family, fetched on first use. Mark the tests that use it with ``models``."""
    from spin_core import zoo

    return zoo.load("smollm2")
