"""Fixtures for every room's tests."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):     # side by side: each has its share of the cores
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))

from spin_core import threads       # noqa: E402: before torch, for it says how torch's threads wait

threads.prepare()
import torch        # noqa: E402: it reads the variables when it is imported

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")      # decided once, when Triton is first imported: before all else


@pytest.fixture(scope="module")
def patched_once():
    """For modules that run kernels in Triton's interpreter. It redirects triton.language anew at every call of a
    function; here once for the whole module: half the time."""
    triton = pytest.importorskip("triton")
    if not triton.knobs.runtime.interpret:
        yield
        return
    import triton.language as tl
    from triton.runtime import interpreter

    scope = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", lambda fn: SimpleNamespace(restore=lambda: None))
        yield
    scope.restore()


@pytest.fixture(scope="session")
def smollm2():
    """The embedded family, fetched on first use. Mark the tests that use it with ``models``."""
    from spin_core import zoo

    return zoo.load("smollm2")
