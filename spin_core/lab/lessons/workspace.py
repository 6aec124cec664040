"""A student's own copy of the lessons: ``./run_all.sh lab``, or ``python -m spin_core.lab.lessons.workspace``.

The notebooks are copied to ``my_lessons/``, which git ignores: notes and answers stay when the checkout is updated, and
the figures of a lesson land beside it. A copy that exists is never written over; ``--fresh`` makes another one.
"""

import os
import re
import sys
from pathlib import Path

import nbformat

from spin_core.lab.reproduce import ROOT

NAME = "my_lessons"
START = "00_start_here.ipynb"


def prepare(root: Path, fresh: bool = False) -> Path:
    """Copy the lessons that are missing to the newest folder ``my_lessons`` of ``root``, without their outputs, and
    return that folder. ``fresh``: to a new folder, ``my_lessons_2`` and so on. An older folder may be missing."""
    found = [re.fullmatch(rf"{NAME}(?:_(\d+))?", path.name) for path in root.iterdir()]
    newest = max((int(match[1] or 1) for match in found if match), default=0)
    number = newest + 1 if fresh else max(newest, 1)
    folder = root / (NAME if number == 1 else f"{NAME}_{number}")
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: move it away, the lessons are copied to a folder of this name")
    folder.mkdir(exist_ok=True)
    for source in sorted((root / "notebooks").glob("*.ipynb")):
        if not (folder / source.name).exists():
            notebook = nbformat.read(source, as_version=4)
            notebook.metadata.pop("widgets", None)
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    cell.outputs, cell.execution_count = [], None
            nbformat.write(notebook, folder / source.name)
    return folder


def main(arguments: list[str] | None = None) -> None:
    """Prepare the copy, say where it is, and become JupyterLab, which gets all other ``arguments``."""
    options = sys.argv[1:] if arguments is None else list(arguments)
    fresh = "--fresh" in options
    try:
        folder = prepare(ROOT, fresh)
    except FileExistsError as error:
        sys.exit(f"error: {error}")
    print(f"Your lessons are in {folder.name}/. Your answers and figures stay there; --fresh makes a new copy.\n"
          "The first lesson that you run fetches the models (93 MB, once). JupyterLab opens in your browser;\n"
          "if it does not, open the address below. Ctrl-C here ends it.", flush=True)
    options = [option for option in options if option != "--fresh"]
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", "--Application.log_level=WARN",
                              f"--ServerApp.root_dir={ROOT}", f"--LabApp.default_url=/lab/tree/{folder.name}/{START}",
                              *options])


if __name__ == "__main__":
    main()
