"""Buttons that open the lessons on Binder and Colab: ``python -m spin_core.lab.lessons.buttons`` prints them.

The repository's address is that of ``[project.urls] Repository`` in ``pyproject.toml``.
"""

import sys
import tomllib
from pathlib import Path

from spin_core.lab.reproduce import ROOT


def buttons(root: Path = ROOT, branch: str = "main") -> str:
    """Markdown: a Binder button for the course, Colab's for each lesson, and the cell that Colab needs first. Raises
    ValueError if the address is missing, or is not on GitHub, which both services expect."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    address = project.get("urls", {}).get("Repository", "").removesuffix("/").removesuffix(".git")
    if not address.startswith("https://github.com/"):
        raise ValueError("pyproject.toml: set [project.urls] Repository to https://github.com/OWNER/NAME")
    path = address.removeprefix("https://github.com/")
    lines = [f"[![Binder](https://mybinder.org/badge_logo.svg)](https://mybinder.org/v2/gh/{path}/{branch}"
             "?urlpath=lab/tree/notebooks/00_start_here.ipynb)"]
    lines += [f"[![{lesson.stem} in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
              f"(https://colab.research.google.com/github/{path}/blob/{branch}/notebooks/{lesson.name})"
              for lesson in sorted((root / "notebooks").glob("*.ipynb"))]
    return "\n".join([*lines, f"In Colab first: `!git clone {address} && pip install ./{path.split('/')[1]}`"])


if __name__ == "__main__":
    try:
        print(buttons())
    except ValueError as missing:
        sys.exit(str(missing))
