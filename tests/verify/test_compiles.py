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


def launched(room: str) -> set[str]:
    """Names of the kernels that a room's module launches, ``name[grid](...)``."""
    source = TESTS.parent / "spin_core" / room / {"verify": "kernel.py", "decompose": "kernels.py", "runtime": "compact_kernel.py",
                                                      "lessons": "kernel_ladder.py"}[room]
    return {node.func.value.id for node in ast.walk(ast.parse(source.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
            and isinstance(node.func.value, ast.Name)}


@pytest.mark.skipif("nvidia" not in triton.backends.backends, reason="this Triton has no compiler for NVIDIA GPUs")
@pytest.mark.parametrize("room", ["verify", "decompose", "lessons", "runtime"])
def test_compiles_for_sm_90(room, tmp_path):
    paths = [str(TESTS.parent), str(TESTS), str(TESTS / "decompose")]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": os.pathsep.join(paths), "TRITON_CACHE_DIR": str(tmp_path)}
    run = subprocess.run([sys.executable, str(TESTS / "compile_kernels.py"), room], env=environment,
                         capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stderr[-3000:]
    kernels = [json.loads(line) for line in run.stdout.splitlines()]
    assert launched(room) and launched(room) == {k["kernel"] for k in kernels}
    for k in kernels:
        assert k["machine_code"] > 1000 and k["shared"] <= 227 * 1024, k
