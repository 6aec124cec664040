"""Saving a figure together with its numbers.

``figures/NAME.svg`` and ``NAME.png`` are the picture, ``figures/NAME.json`` holds what was plotted:

    {
      "schema": 1,
      "name": "ablation",
      "caption": "one or two sentences: what is plotted, and what to see in it",
      "finding": "the one sentence that the figure says; older files have none",
      "notes": "longer remarks, or an empty string",
      "notebook": "05_pipeline",       notebook and profile that produced it, null outside a run of
      "profile": "default",            python -m spin_core reproduce
      "series": [
        {
          "label": "SPIN, CP, 7B",
          "kind": "published",         published (from a paper), modelled (from the simulator) or measured
          "source": "SPIN, Fig. 9",    the paper; the hardware profile; for "measured" optional
          "provenance": {...},         only "measured": spin_core.lab.provenance.here(), or the series' own
          "x": [1, 2, 3],              numbers or names
          "y": [1.45, 1.81, 1.99],     as many numbers; null is a missing value
          ...                          anything else that is plain JSON (a unit, error bars, ...)
        }
      ]
    }

The three kinds are never mixed without labels, so every series carries its own.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spin_core.lab import provenance
from spin_core.files import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("published", "modelled", "measured")
FIELDS = ("schema", "name", "caption", "notes", "notebook", "profile", "series")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def save(
    name: str,
    fig: Figure,
    series: Iterable[dict[str, Any]],
    *,
    caption: str,
    finding: str = "",
    notes: str = "",
    directory: str | Path | None = None,
) -> Path:
    """Write ``NAME.svg``, ``NAME.png`` and ``NAME.json`` into ``directory`` and return the path of the last.

    All three are rendered under temporary names first and then renamed, the numbers last: a run that fails
    half way leaves an earlier figure as it was. The same figure gives the same SVG and PNG bytes.

    ``series`` is described in the module's docstring; arrays and tensors become lists. A measured series
    without a ``provenance`` of its own gets that of this machine, so numbers brought from another machine must
    bring theirs. ``directory`` None means ``figures/`` of the checkout.

    Raises ValueError, naming the figure and the series, for a name that is no plain file name, an empty
    caption, an unknown kind, a missing source, x and y of different lengths, or a NaN or infinity (None is
    a missing value).
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"figure name {name!r}: use letters, digits, '-' and '_' only")
    if not caption.strip():
        raise ValueError(f"figure {name}: a figure needs a caption")
    document = {
        "schema": 1,
        "name": name,
        "caption": caption,
        "finding": finding,
        "notes": notes,
        "notebook": os.environ.get("SPIN_NOTEBOOK"),     # set by lab/reproduce
        "profile": os.environ.get("SPIN_PROFILE"),
        "series": [_series(f"figure {name}, series {i}", one) for i, one in enumerate(series)],
    }
    if any(s["kind"] == "measured" and "provenance" not in s for s in document["series"]):
        here = provenance.here()
        for one in document["series"]:
            if one["kind"] == "measured":
                one.setdefault("provenance", here)
    if not document["series"]:
        raise ValueError(f"figure {name}: no series; the numbers belong beside the picture")

    folder = Path(directory) if directory is not None else default_directory()
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:      # they appear in the opposite order, when the block ends
        numbers, png, svg = (stack.enter_context(writing(folder / f"{name}.{end}")) for end in ("json", "png", "svg"))
        _render(fig, svg, salt=name)
        _render(fig, png, salt=name)
        numbers.write_text(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")
    return folder / f"{name}.json"


def read(directory: str | Path | None = None) -> list[dict[str, Any]]:
    """The documents of all figures in ``directory``, ordered by notebook, then by name.

    Raises ValueError naming the file that is not a figure's JSON.
    """
    folder = Path(directory) if directory is not None else default_directory()
    documents = []
    for path in sorted(folder.glob("*.json")):
        if not path.with_suffix(".svg").exists():       # numbers of something else
            continue
        try:
            document = json.loads(path.read_text("utf-8"))
            missing = [field for field in FIELDS if field not in document]
            if missing:
                raise ValueError(f"missing {', '.join(missing)}")
            if document["name"] != path.stem:
                raise ValueError(f"its name is {document['name']!r}")
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} does not describe a figure: {error}") from error
        documents.append(document)
    return sorted(documents, key=lambda d: (d["notebook"] or "", d["name"]))


def default_directory() -> Path:
    """``figures/`` of the checkout; of the working directory when the package runs from site-packages."""
    checkout = (provenance.ROOT / "pyproject.toml").exists()
    return (provenance.ROOT if checkout else Path.cwd()) / "figures"


def _render(fig: Figure, path: Path, salt: str) -> None:
    import matplotlib

    # ids in an SVG are random and both formats carry a date or a version by default
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": salt}):
        fig.savefig(path, dpi=150, bbox_inches="tight", metadata=metadata)


def _series(where: str, series: dict[str, Any]) -> dict[str, Any]:
    """Check one series and return it as plain JSON values."""
    def check(ok: bool, rule: str) -> None:
        if not ok:
            raise ValueError(f"{where}: {rule}")

    for key in ("label", "kind", "x", "y"):
        check(key in series, f"needs {key!r}")
    where = f"{where} ({series['label']!r})"
    kind = series["kind"]
    check(kind in KINDS, f"kind {kind!r} is not one of {', '.join(KINDS)}")
    check(kind == "measured" or bool(series.get("source")), f"{kind} numbers need a source")
    check(kind == "measured" or "provenance" not in series, f"{kind} numbers have a source, not a provenance")
    series = {key: _plain(where, value) for key, value in series.items()}
    for key in ("x", "y"):
        check(isinstance(series[key], list), f"{key} must be a list of values")
    check(len(series["x"]) == len(series["y"]), f"x has {len(series['x'])} values, y has {len(series['y'])}")
    check(all(y is None or isinstance(y, (int, float)) for y in series["y"]), "y must hold numbers (or None)")
    return series


def _plain(where: str, value: Any) -> Any:
    """Numpy and torch values as Python's own, tuples as lists; ValueError for what JSON cannot hold."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(where, item) for key, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [_plain(where, item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: {value} is not a number to plot; use None for a missing value")
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise ValueError(f"{where}: a {type(value).__name__} cannot be written to JSON")
