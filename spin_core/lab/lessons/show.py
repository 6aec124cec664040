"""Showing a figure in a notebook and keeping it with its numbers, in one call."""

from __future__ import annotations

from pathlib import Path

from IPython.display import Image, display
from matplotlib.figure import Figure

from spin_core.lab.results import figures
from spin_core.lab.lessons import look


def show(name: str, figure: Figure, *series: dict, caption: str,
         directory: str | Path | None = None) -> None:
    """Save ``figure`` and its ``series`` (:func:`spin_core.lab.results.figures.save`) and display the picture, wherever in a cell
    this is called.

    The caption is also the picture's alternative text. An empty ``directory`` is the repository's figures
    folder.
    """
    figures.save(name, figure, series, caption=caption, directory=directory or None)
    display(Image(look.png(figure, dpi=200, whole=True), format="png", width=round(look.WIDTH * 100), alt=caption))


def measured(label: str, x, y, **more) -> dict:
    """A series of numbers measured here."""
    return dict(label=label, kind="measured", x=x, y=y, **more)


def modelled(label: str, x, y, *, source: str, **more) -> dict:
    """A series of numbers computed by a formula; ``source`` names it."""
    return dict(label=label, kind="modelled", source=source, x=x, y=y, **more)


def published(label: str, x, y, *, source: str, **more) -> dict:
    """A series of numbers from a paper; ``source`` names it."""
    return dict(label=label, kind="published", source=source, x=x, y=y, **more)
