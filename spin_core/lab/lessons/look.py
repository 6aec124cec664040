"""One look for all figures: the palette, the context they are drawn in, and small helpers that several share.

Colours come from one palette that stays readable with the common forms of colour blindness (Okabe and Ito), and no
meaning rests on colour alone. p and everything of the target is blue, q and everything drafted orange.
"""

import functools
import io
import textwrap
from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, StrMethodFormatter

BLUE, ORANGE, GREEN, RED, SKY, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
INK, GREY, LIGHT = "#222222", "#777777", "#E4E4E4"
P_COLOUR, Q_COLOUR, RESIDUAL_COLOUR = BLUE, ORANGE, SKY
SERIES = [(GREEN, "o"), (RED, "s"), (BLUE, "^"), (ORANGE, "v"), (GREY, "P"), (SKY, "X"), (INK, "p"), ("#A08A00", "h")]
HOLLOW = dict(marker="o", linestyle="none", color=INK, markerfacecolor="white", markersize=7, zorder=5)
"""The reader's own short run, beside a stored measurement."""
WIDTH = 9.6             # inches, of every figure: one column of a notebook
PUBLISHED = dict(facecolor="#D9D9D9", edgecolor=GREY, hatch="///", linewidth=0.8)      # bars of a paper's numbers
MONO = "DejaVu Sans Mono"      # comes with matplotlib
CHAR = 0.602           # width of its characters over its size

_STYLE = {
    "font.family": "DejaVu Sans", "font.size": 10.5, "axes.titlesize": 11, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "axes.titlepad": 9, "axes.labelsize": 10.5, "xtick.labelsize": 10,
    "ytick.labelsize": 10, "legend.fontsize": 9.5, "legend.frameon": False, "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#999999", "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK,
    "ytick.color": INK, "xtick.major.size": 0, "ytick.major.size": 0, "axes.grid": True, "grid.color": LIGHT,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True, "lines.linewidth": 2, "lines.markersize": 6.5, "figure.facecolor": "white",
    "axes.facecolor": "white", "figure.dpi": 100, "text.parse_math": False, "svg.fonttype": "path",
}


def style():
    """The context in which all figures are made."""
    return matplotlib.rc_context(_STYLE)


def styled(function: Callable[..., Figure]) -> Callable[..., Figure]:
    @functools.wraps(function)
    def plot(*args, **kwargs) -> Figure:
        with style():
            return function(*args, **kwargs)
    return plot


def canvas(height: float, rows: int = 1, columns: int = 1, **grid):
    """A figure as wide as a column of a notebook and ``height`` inches high, and its axes: ``Figure.subplots``."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **grid)


def headline(figure: Figure, text: str) -> None:
    """The finding of a figure with several panels, above all of them."""
    figure.suptitle(textwrap.fill(text, 100), x=0.01, ha="left", size=11, weight="bold")


def stretch(panels: np.ndarray, count: int) -> None:
    """Remove the panels of a grid behind the first ``count``; the last of these takes their room in its row."""
    last, rest = panels.flat[count - 1], panels.flat[count:]
    if len(rest):
        at = last.get_subplotspec()
        last.set_subplotspec(last.get_gridspec()[at.rowspan.start, at.colspan.start:])
        for panel in rest:
            panel.remove()


def png(figure: Figure, dpi: int = 150, whole: bool = False) -> bytes:
    """The picture as a PNG of 128 colours: a third of the size, and none of these figures looks different. ``whole``:
    large enough for what stands out over the figure's edges."""
    from PIL import Image

    pixels, small = io.BytesIO(), io.BytesIO()
    with style():
        figure.savefig(pixels, format="png", dpi=dpi, bbox_inches="tight" if whole else None)
    # maximum coverage keeps colours that few pixels have; the default, median cut, shifts them
    picture = Image.open(pixels).convert("RGB")
    picture = picture.quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    picture.save(small, "PNG", optimize=True)
    return small.getvalue()


def label(text: str, longest: int = 14) -> str:
    """A token's text for a figure: spaces and line ends visible, what the font lacks as a box."""
    text = text.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥") or "∅"
    text = "".join(c if ord(c) in _known_characters() else "□" for c in text)
    return text if len(text) <= longest else text[:longest - 1] + "…"


@functools.cache
def _known_characters() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(findfont(FontProperties(family=MONO))).get_charmap())


def look(drafter: str, index: int) -> tuple[str, str]:
    """Colour and marker of the drafter at ``index``; prompt lookup looks the same in every figure."""
    return (PURPLE, "D") if drafter == "ngram" else SERIES[index % len(SERIES)]


def tint(colour: str, share: float) -> tuple[float, float, float]:
    """``share`` of the colour, the rest white."""
    return tuple(1 - share * (1 - c) for c in matplotlib.colors.to_rgb(colour))


def bars(panel: Axes, names: Sequence[str], values: Sequence[float], colours=tint(BLUE, 0.45), *, text: str = "{:.2f}",
         **style) -> None:
    """Horizontal bars from top to bottom, each with its number behind it; NaN is a missing one. ``style`` in place of
    ``colours``: what barh takes."""
    panel.barh(range(len(names)), values, 0.62, **style or {"color": colours})
    for y, value in enumerate(values):
        if np.isfinite(value):
            panel.annotate(text.format(value), (value, y), (4, 0), textcoords="offset points", va="center", size=9.5,
                           bbox=dict(facecolor="white", edgecolor="none", pad=0.8))
    panel.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.4, -0.6))
    panel.set_xlim(0, 1.2 * max([1e-9, *(v for v in values if np.isfinite(v))]))
    panel.grid(axis="y", visible=False)


def one(panel: Axes, along: str = "y") -> None:
    """A dotted line at 1: neither gain nor loss."""
    line = panel.axhline if along == "y" else panel.axvline
    line(1, color=INK, linewidth=1, linestyle=":")


def logarithmic(panel: Axes, along: str, ticks: Sequence[float] | None = None) -> None:
    """A logarithmic axis with numbers that a reader can say, at ``ticks`` if they are given."""
    axis = panel.xaxis if along == "x" else panel.yaxis
    panel.set(**{f"{along}scale": "log"})
    axis.set_major_locator(FixedLocator(ticks) if ticks is not None else LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def legend_below(figure: Figure, *panels: Axes, ncols: int = 3, title: str | None = None) -> None:
    """One legend under the figure for what ``panels`` show (default: the figure's first), each label once."""
    found = {label: handle for panel in panels or figure.axes[:1]
             for handle, label in zip(*panel.get_legend_handles_labels())}
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=ncols, title=title)


def characters(size: float, width: float = WIDTH) -> float:
    """How many characters of ``size`` points fit side by side."""
    return width * 72 / (size * CHAR)


def flow(tokens: Sequence[str], columns: int) -> list[tuple[int, int, int, str]]:
    """A text in lines of so many characters, which break between words where they can: of each piece the number of its
    token, its column, its line, and itself. Line ends are a token, or part of one: they are shown."""
    placed, x, line = [], 0, 0
    for i, token in enumerate(tokens):
        starts_word = token[:1].isspace() or i == 0
        word = len(token)       # up to the next token that begins with a space
        for later in tokens[i + 1:] if starts_word else ():
            if later[:1].isspace() or word > columns:
                break
            word += len(later)
        if x + (word if starts_word else len(token)) > columns:
            x, line, token = 0, line + 1, token.removeprefix(" ")
        pieces = token.split("\n")
        for k, piece in enumerate(pieces):
            ends = k < len(pieces) - 1
            shown = (label(piece, columns).replace("␣", " ") if piece else "") + "↵" * ends
            if shown:
                placed.append((i, x, line, shown))
                x += len(shown)
            if ends:
                x, line = 0, line + 1
    return placed


def apart(values: Sequence[float], gap: float) -> list[float]:
    """The values in their order, moved up where two would be closer than ``gap``: for labels at line ends."""
    moved, order = list(values), np.argsort(values, kind="stable")
    for below, above in zip(order, order[1:]):
        moved[above] = max(moved[above], moved[below] + gap)
    return moved
