"""The system in one picture: the way of a step, and the pipeline that overlaps two of its stages."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from spin_core.lab.lessons.look import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, WIDTH, styled, tint

STAGES = (      # title, two lines, lesson, colour
    ("pool", "several\ndrafters", "lesson 2", ORANGE),
    ("selector", "one drafter\nper request", "lesson 3", PURPLE),
    ("drafts", "γ tokens\nper request", "lesson 1", ORANGE),
    ("pieces", "unequal lengths,\nno padding", "lesson 4", BLUE),
    ("verify", "one target pass,\naccept / reject", "lessons 1, 6", BLUE),
    ("commit", "accepted tokens\nand one more", "lesson 1", GREEN),
)


@styled
def system() -> Figure:
    """The six stages of a step from left to right, the way back, and two micro-batches in the pipeline below."""
    figure = Figure(figsize=(WIDTH, 4.3))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, 96), ylim=(0, 43))
    ax.axis("off")
    for i, (title, text, lesson, colour) in enumerate(STAGES):
        x = 1.5 + 15.7 * i
        ax.add_patch(FancyBboxPatch((x, 27), 12.6, 10.5, boxstyle="round,pad=0.3,rounding_size=1.2",
                                    facecolor=tint(colour, 0.18), edgecolor=colour, linewidth=1.6))
        ax.text(x + 6.3, 35.4, title, ha="center", va="center", weight="bold", size=11.5)
        ax.text(x + 6.3, 31.7, text, ha="center", va="center", size=9)
        ax.text(x + 6.3, 28.3, lesson, ha="center", va="center", size=8.5, color="#555555")
        if i:
            _arrow(ax, (x - 2.7, 32.2), (x - 0.4, 32.2))
    _arrow(ax, (86.3, 38), (23.5, 38), "arc3,rad=0.09")
    ax.text(55, 41.6, "what was accepted teaches the selector; the next step begins", ha="center", va="center", size=9,
            color="#555555")
    ax.text(1.2, 22.3, "The pipeline (lesson 5): while the target verifies one half of the batch, the drafters draft "
                       "for the other half.", size=10, va="center", weight="bold")
    for row, (stage, colour) in enumerate((("draft", ORANGE), ("verify", BLUE))):
        y = 13.5 - 7 * row
        ax.text(8, y + 2.4, stage, ha="right", va="center", size=10)
        for k in range(5):
            x, group = 9.5 + 14.1 * (k + row), k % 2
            ax.add_patch(Rectangle((x, y), 13.6, 4.8, facecolor=tint(colour, 0.75 if group == 0 else 0.4),
                                   edgecolor="white"))
            ax.text(x + 6.8, y + 2.4, f"half {'AB'[group]}", ha="center", va="center", size=9.5, color=INK)
    _arrow(ax, (9.5, 3.2), (94, 3.2))
    ax.text(94, 1.3, "time", ha="right", va="center", size=9, color=GREY)
    return figure


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], style: str = "arc3,rad=0") -> None:
    ax.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=13, linewidth=1.4, color=GREY,
                                 connectionstyle=style, shrinkA=0, shrinkB=0))
