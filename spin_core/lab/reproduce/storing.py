"""Storing results in the notebooks themselves, so that a code host's reader sees them."""

import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from spin_core.files import writing
from spin_core.lab.reproduce import ROOT, NotebookError

MAX_STORED_BYTES = 2_000_000


def store(source: Path, executed: Path) -> None:
    """Put the outputs of an executed copy into the source notebook: nothing else of it changes.

    Raises NotebookError, leaving the notebook alone, when the cells are not the same, an output is an error
    or names a path of this machine, or the result is larger than MAX_STORED_BYTES.
    """
    notebook, ran = nbformat.read(source, as_version=4), nbformat.read(executed, as_version=4)
    cells = [cell for cell in ran.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    if [cell.source for cell in cells] != [cell.source for cell in notebook.cells]:
        raise NotebookError(f"{executed} was not made from {source}")
    count = 0
    for number, (cell, done) in enumerate(zip(notebook.cells, cells), 1):
        if cell.cell_type != "code":
            continue
        cell.outputs, cell.execution_count = done.outputs, None
        if done.execution_count is not None:
            count += 1                      # without the injected cell's number
            cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
            _check_stored(f"cell {number}", output)
    if "widgets" in ran.metadata:           # the state that lets a viewer draw the widgets without a kernel
        notebook.metadata["widgets"] = ran.metadata["widgets"]
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata["language_info"] = {"name": "python"}
    text = nbformat.writes(notebook)
    size = len(text.encode())
    if size >= MAX_STORED_BYTES:
        raise NotebookError(f"{source} would be {size / 1e6:.1f} MB with its outputs; the limit is 2 MB")
    with writing(source) as part:
        part.write_text(text + "\n", "utf-8")


def _check_stored(where: str, output: NotebookNode) -> None:
    if output.output_type == "error":
        raise NotebookError(f"{where} ends in {output.ename}: {output.evalue}")
    texts = [output.get("text", "")]
    texts += [value for kind, value in output.get("data", {}).items() if not kind.startswith("image/")]
    for text in map(str, texts):
        for path in (str(ROOT), sys.prefix, str(Path.home())):
            if len(path) > 1 and path in text:
                raise NotebookError(f"{where} shows a path of this machine: {path}")
