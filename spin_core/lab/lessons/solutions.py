"""The lessons with their solutions: ``python -m spin_core.lab.lessons.solutions`` writes ``notebooks/solutions/``.

Each solution stands once, as a function in the lesson's ``checks.py``. Here its body takes the place of the ``...`` in
the exercise's cell, between nbgrader's marks ``### BEGIN SOLUTION`` and ``### END SOLUTION``: the notebooks are what a
student may look up, and what nbgrader makes assignments from.
"""

import ast
import importlib
import inspect
import json
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from spin_core.lab import lessons
from spin_core.lab.lessons.checking import Exercise
from spin_core.lab.reproduce import ROOT


def exercises() -> dict[str, Exercise]:
    """All exercises by the name of their check."""
    modules = [importlib.import_module(f"{package.name}.checks")
               for package in pkgutil.iter_modules(lessons.__path__, f"{lessons.__name__}.")
               if re.search(r"\.l[1-9]\d*_", package.name)]
    return {name: value for module in modules for name, value in list(vars(module).items())
            if isinstance(value, Exercise)}


def graded(notebook: dict) -> Iterator[tuple[dict, dict]]:
    """The pairs (exercise cell, checking cell) of a notebook, as parsed JSON."""
    cells = {cell["metadata"]["nbgrader"]["grade_id"]: cell for cell in notebook["cells"]
             if isinstance(cell.get("metadata", {}).get("nbgrader"), dict)}
    for name, cell in cells.items():
        if cell["metadata"]["nbgrader"]["solution"]:
            yield cell, cells[f"{name}-check"]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def solved(notebook: dict, solutions: dict[str, Exercise]) -> dict:
    """The notebook with the solutions in place, without outputs, its links made for a folder further down."""
    for cell, check in graded(notebook):
        body = _body(solutions[re.search(r"check_\w+", source(check))[0]].solution)
        marked = f"    ### BEGIN SOLUTION\n{textwrap.indent(body, '    ')}\n    ### END SOLUTION"
        text, found = re.subn(r"^    \.\.\.$", lambda _: marked, source(cell), flags=re.MULTILINE)
        if found != 1:
            raise ValueError(f"the cell of {cell['metadata']['nbgrader']['grade_id']} needs one line with ... alone")
        cell["source"] = text.splitlines(keepends=True)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
        else:
            text = re.sub(r"\]\((?![a-z]+://|#)([^)]+)\)", r"](../\1)", source(cell))
            cell["source"] = text.splitlines(keepends=True)
    notebook["metadata"] = {"kernelspec": notebook["metadata"]["kernelspec"]}       # not what the last run leaves there
    return notebook


def _body(function) -> str:
    """The statements of a function and the comments between them, without its docstring, from column 0."""
    text = textwrap.dedent(inspect.getsource(function))
    node = ast.parse(text).body[0]
    after = node.body[0].end_lineno if ast.get_docstring(node) else node.lineno
    return textwrap.dedent("\n".join(text.splitlines()[after:]))


def write(folder: Path = ROOT / "notebooks" / "solutions", lessons: Path = ROOT / "notebooks") -> list[Path]:
    """Write the solved form of each lesson that has exercises into ``folder``."""
    folder.mkdir(exist_ok=True)
    solutions, written = exercises(), []
    for path in sorted(lessons.glob("*.ipynb")):
        notebook = json.loads(path.read_text())
        if any(True for _ in graded(notebook)):
            written.append(folder / path.name)
            written[-1].write_text(json.dumps(solved(notebook, solutions), indent=1, ensure_ascii=False) + "\n")
    return written


if __name__ == "__main__":
    print("\n".join(map(str, write())))
