"""The beginning of a lesson, and its figures: shown in the notebook and kept with their numbers, in one call."""

import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from IPython import get_ipython
from IPython.display import HTML, Image, display
from matplotlib.figure import Figure

from spin_core.lab import provenance
from spin_core.lab.lessons import look
from spin_core.lab.reproduce.notebooks import literals
from spin_core.lab.results import figures

_folder = Path("figures")       # where show() keeps figures; begin() sets it


def begin(profile: str, figures_dir: str | Path = "", **sizes: Any) -> Any:
    """Begin a lesson: print what it runs on, and return the one of ``sizes`` that belongs to ``profile``.

    Figures go to ``figures_dir`` from now on; empty is ``figures/`` beside the notebook. While nbgrader runs the
    lesson, the profile is quick. Raises ValueError for a profile that does not exist, and for a parameter of papermill
    that the notebook does not have.
    """
    global _folder
    _refuse_unknown_parameters()
    profile = "quick" if "NBGRADER_EXECUTION" in os.environ else profile
    if profile not in sizes:
        raise ValueError(f"profile {profile!r}: choose {', '.join(sizes)}")
    _folder = Path(figures_dir or "figures")
    here = provenance.here()
    say(", ".join(f"{name} {number}" for name, number in here["versions"].items() if number))
    print(f"{here['gpu'] or here['cpu']}, {here['cores']} cores, {here['threads']} threads; profile {profile}")
    return sizes[profile]


def folder() -> Path:
    """Where this lesson's figures go."""
    return _folder


def _refuse_unknown_parameters() -> None:
    """Compare what papermill has set, in a cell that begins "# Parameters", with the cell of defaults before it."""
    shell = get_ipython()
    cells = shell.user_ns.get("In", []) if shell else []
    for defaults, given in zip(cells, cells[1:]):
        if given.startswith("# Parameters\n") and "figures_dir" in defaults:
            known, unknown = sorted(literals(defaults)), sorted(literals(given).keys() - literals(defaults).keys())
            if unknown:
                raise ValueError(f"unknown parameters {', '.join(unknown)}; known: {', '.join(known)}")


def show(name: str, figure: Figure, *series: dict, caption: str, finding: str = "",
         directory: str | Path | None = None) -> None:
    """Display ``figure``, and save it and its ``series`` (:func:`spin_core.lab.results.figures.save`).

    Over the picture stands of which kinds its numbers are. The caption is also the picture's alternative text;
    ``finding`` is what the figure says, in one sentence: by default its title. ``directory``: the one that
    :func:`begin` was given. Raises ValueError for a figure without a finding and without a title.
    """
    finding = finding or figure.get_suptitle() or next((axes.get_title("left") for axes in figure.axes), "")
    finding = " ".join(finding.split())         # a title may have several lines
    if not finding:
        raise ValueError(f"figure {name}: say what it shows, by finding=... or by its title")
    kinds = [kind for kind in figures.KINDS if any(one["kind"] == kind for one in series)]
    figure.text(1, 1, " · ".join(kinds), ha="right", va="bottom", size=9, color=look.GREY)
    figures.save(name, figure, series, caption=caption, finding=finding, directory=directory or _folder)
    display(Image(look.png(figure, dpi=200, whole=True), format="png", width=round(look.WIDTH * 100), alt=caption))


def say(text: str) -> None:
    """Print ``text``, which may have several lines, in lines of at most 88 characters: a notebook breaks longer ones in
    the middle of a word."""
    for line in text.splitlines():
        print(textwrap.fill(line, 88, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False))


def progress(items: Iterable, total: int, what: str) -> Iterator:
    """The ``items``, under a line that says how many of ``total`` there have been; it goes when they are through.
    Outside a notebook there is no line."""
    line = display(HTML(""), display_id=True) if get_ipython() else None
    for done, item in enumerate(items):
        yield item
        if line:
            line.update(HTML(f"⏳ {what}: {done + 1} of {total}" if done + 1 < total else ""))


def measured(label: str, x, y=None, **more) -> dict:
    """A series of numbers measured here: ``y`` at ``x``, or a mapping ``x`` from one to the other."""
    return _series("measured", label, x, y, more)


def modelled(label: str, x, y=None, *, source: str, **more) -> dict:
    """A series of numbers computed by a formula; ``source`` names it."""
    return _series("modelled", label, x, y, more | {"source": source})


def published(label: str, x, y=None, *, source: str, **more) -> dict:
    """A series of numbers from a paper; ``source`` names it."""
    return _series("published", label, x, y, more | {"source": source})


def each(kind: Callable[..., dict], label: str, curves: Mapping[Any, Any], x=None, **more) -> list[dict]:
    """A series of one ``kind``, such as :func:`measured`, for each of ``curves``; its name goes into the braces of
    ``label``. A curve is a mapping from x to y, a pair of both, or, where all curves have the same ``x``, its y."""
    return [kind(label.format(name), *((x, y) if x is not None else y if isinstance(y, tuple) else (y,)), **more)
            for name, y in curves.items()]


def _series(kind: str, label: str, x, y, more: dict) -> dict:
    x, y = (list(x), list(x.values())) if y is None else (x, y)
    return dict(label=label, kind=kind, x=x, y=y, **more)
