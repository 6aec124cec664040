"""Finding notebooks, reading their parameters, and knowing when one has changed."""

import ast
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from spin_core.lab.reproduce import ROOT, NotebookError


def discover(folder: Path, only: str | None = None) -> list[Path]:
    """Notebooks of ``folder`` in name order; with ``only``, those of that name, name prefix or number.

    Raises ValueError that lists the known names when ``only`` matches none.
    """
    paths = sorted(folder.glob("*.ipynb"))
    if only is None:
        return paths
    wanted = Path(only).name.removesuffix(".ipynb")

    def matches(stem: str) -> bool:
        number = re.match(r"\d+", stem)
        if wanted.isdigit():                        # 1 is 01_..., and not 10_...
            return number is not None and int(number[0]) == int(wanted)
        return bool(wanted) and stem.startswith(wanted)

    exact = [path for path in paths if path.stem == wanted]
    found = exact or [path for path in paths if matches(path.stem)]
    if not found:
        known = ", ".join(path.stem for path in paths) or "none"
        raise ValueError(f"no notebook {only!r}; known: {known}")
    return found


def parameters(notebook: NotebookNode) -> dict[str, Any]:
    """Names and values that the cell tagged ``parameters`` assigns.

    Raises NotebookError unless exactly one cell has the tag and it holds only ``name = literal`` lines.
    """
    tagged = [(i, cell) for i, cell in enumerate(notebook.cells, 1)
              if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1 or tagged[0][1].cell_type != "code":
        where = f" (cells {', '.join(str(i) for i, _ in tagged)})" if tagged else ""
        raise NotebookError(f"needs exactly one code cell tagged 'parameters', has {len(tagged)}{where}")
    number, cell = tagged[0]
    try:
        return literals(cell.source)
    except (SyntaxError, ValueError) as error:
        why = f"cell {number}, tagged 'parameters', must hold plain literals only: {error}"
        raise NotebookError(why) from error


def literals(source: str) -> dict[str, Any]:
    """Names and values of a cell's assignments. Raises ValueError for anything but ``name = literal`` lines."""
    values = {}
    for statement in ast.parse(source).body:
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
            raise ValueError(f"line {statement.lineno} is no assignment")
        targets = getattr(statement, "targets", None) or [statement.target]
        if len(targets) != 1 or not isinstance(targets[0], ast.Name) or statement.value is None:
            raise ValueError(f"line {statement.lineno} is not 'name = literal'")
        values[targets[0].id] = ast.literal_eval(statement.value)
    return values


def package_digest(package: Path = ROOT / "spin_core") -> str:
    """Hash of the package's files, the pinned versions and the stored benchmarks: what a result depends on besides its
    notebook."""
    digest = hashlib.sha256()
    files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    files += (package.parent / "figures" / "data").rglob("*.json")
    for path in sorted([*files, package.parent / "pyproject.toml"]):
        if path.exists():
            digest.update(f"{path.relative_to(package.parent).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def notebook_digest(notebook: NotebookNode, *inputs: str) -> str:
    """Hash of a notebook's cells without their outputs, and of the other inputs."""
    cells = [(cell.cell_type, cell.source, sorted(cell.metadata.get("tags", []))) for cell in notebook.cells]
    return hashlib.sha256(json.dumps([cells, inputs]).encode()).hexdigest()
