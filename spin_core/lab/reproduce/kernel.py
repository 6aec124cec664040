"""Executing one notebook with papermill, in a kernel of this interpreter."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import nbformat
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from spin_core.lab.reproduce import ROOT, NotebookError

_LOG = logging.getLogger(__name__)
_LOG.addHandler(logging.NullHandler())
_LOG.propagate = False
for _name in ("papermill", "nbclient"):         # they report failures twice; the runner reports them once
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False


def execute(
    path: Path,
    output: Path,
    values: dict[str, Any],
    *,
    cell_seconds: int,
    on_cell: Callable[[int, int], None] = lambda done, total: None,
    environment: dict[str, str] | None = None,
) -> NotebookNode:
    """Run one notebook with papermill in a kernel of this interpreter; ``output`` gets the executed copy.

    ``values`` go in as papermill parameters; ``on_cell(done, total)`` is called as every cell starts, counted
    in the cells of the source. ``environment`` is added to the kernel's.

    Raises NotebookError naming the cell for an error in it, for one that runs longer than ``cell_seconds``,
    and for a kernel that dies.
    """
    import papermill
    from papermill.exceptions import PapermillExecutionError

    source = nbformat.read(path, as_version=4)
    total = len(source.cells)
    tags = [cell.metadata.get("tags", []) for cell in source.cells]
    tagged = next(i for i, names in enumerate(tags) if "parameters" in names) if values else total
    current = 0

    def source_index(index: int) -> int:        # papermill puts a cell with our values behind the tagged one
        return index - 1 if index > tagged else index

    def cell_starts(cell: NotebookNode, cell_index: int) -> None:
        nonlocal current
        current = source_index(cell_index)
        on_cell(current, total)

    def failure(index: int, why: str, details: str = "") -> NotebookError:
        first = next((line for line in source.cells[index].source.splitlines() if line.strip()), "")
        message = f"cell {index + 1} of {total} ({first.strip()[:60]}): {why}"
        return NotebookError(f"{message}\n{details}" if details else message)

    with tempfile.TemporaryFile() as log:
        try:
            executed = papermill.execute_notebook(
                path, output, values, kernel_name="python3", language="python", cwd=path.parent, progress_bar=False,
                execution_timeout=cell_seconds, on_cell_start=cell_starts, iopub_timeout=60,
                kernel_manager_class=_manager(os.environ | _KERNEL_ENVIRONMENT | (environment or {}), log))
        except PapermillExecutionError as error:
            trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback)).rstrip().splitlines()
            where, why = source_index(error.cell_index), f"{error.ename}: {error.evalue}"
            raise failure(where, why, "\n".join(trace[-8:-1])) from None
        except CellTimeoutError:
            raise failure(current, f"took longer than the limit of {cell_seconds} s for one cell") from None
        except DeadKernelError:
            log.seek(0)
            said = log.read().decode(errors="replace").strip().splitlines()
            last = [line for line in said if "[IPKernelApp]" not in line][-8:]      # not its usual greeting
            why = "the kernel died (out of memory, or a crash in native code)"
            raise failure(current, why, "\n".join(last)) from None
    if current < total - 1:         # papermill takes sys.exit() for success
        raise failure(current, "SystemExit: the cells after it did not run")
    return executed


_KERNEL_ENVIRONMENT = {
    # the kernel imports the spin_core that runs it, installed or not
    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    # a user's MPLBACKEND=Agg would leave the executed copies without pictures
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
}


def _manager(environment: dict[str, str], log: IO[bytes]) -> type:
    """A manager whose kernels run in this interpreter, with that environment, and write into ``log``.

    A kernel spec called python3 may be registered on the machine for another Python, and none need be.
    """
    from ipykernel.kernelspec import make_ipkernel_cmd
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    class ThisInterpreter(AsyncKernelManager):
        @property
        def kernel_spec(self) -> KernelSpec:
            return KernelSpec(argv=make_ipkernel_cmd(), display_name="Python 3", language="python")

        async def _async_pre_start_kernel(self, **options: Any) -> Any:
            return await super()._async_pre_start_kernel(
                **options | {"env": environment, "stdout": log, "stderr": log})

        pre_start_kernel = _async_pre_start_kernel

    return ThisInterpreter


def write_html(notebook: NotebookNode, path: Path) -> None:
    """Export an executed notebook as one HTML file."""
    from nbconvert import HTMLExporter

    page, _ = HTMLExporter(log=_LOG).from_notebook_node(notebook, {"metadata": {"name": path.stem}})
    path.write_text(page, "utf-8")
