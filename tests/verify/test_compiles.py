"""What the interpreter runs, the compiler takes: kernels become sm_90 machine code on a machine without a GPU."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
TESTS = Path(__file__).parents[1]
ROOMS = {"verify": "verify/kernel.py", "decompose": "decompose/kernels.py", "kv": "kv/compact_kernel.py",
         "lessons": "lab/lessons/l6_verify_kernel/ladder.py"}


def launched(room: str) -> set[str]:
    """Names of the kernels that a room's module launches, ``name[grid](...)``."""
    source = TESTS.parent / "spin_core" / ROOMS[room]
    return {node.func.value.id for node in ast.walk(ast.parse(source.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
            and isinstance(node.func.value, ast.Name)}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> list[dict]:
    """Every kernel that was compiled, all rooms in one process: importing takes longer than a room's kernels do."""
    paths = [str(TESTS.parent), str(TESTS)]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": os.pathsep.join(paths), "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    run = subprocess.run([sys.executable, str(TESTS / "compile_kernels.py"), *ROOMS], env=environment,
                         capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stderr[-3000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.skipif("nvidia" not in triton.backends.backends, reason="this Triton has no compiler for NVIDIA GPUs")
@pytest.mark.parametrize("room", ROOMS)
def test_compiles_for_sm_90(room, compiled):
    kernels = [k for k in compiled if k["room"] == room]
    assert launched(room) and launched(room) == {k["kernel"] for k in kernels}
    for k in kernels:
        assert k["machine_code"] > 1000 and k["shared"] <= 227 * 1024, k
