"""Lesson 5's figures: when each stage works, goodput by number of micro-batches, the heuristic's climb."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from spin_core.lab.lessons.look import (
    BLUE, GREEN, GREY, HOLLOW, INK, ORANGE, RED, SKY, canvas, legend_below, styled, tint)
from spin_core.lab.schedule import DRAFT, STAGES, VERIFY, Schedule
from spin_core.pipeline.heuristic import Decision

COLOURS = {DRAFT: ORANGE, VERIFY: BLUE}


@styled
def gantt(schedules: Mapping[str, Schedule], *, title: str = "") -> Figure:
    """Both stages of each schedule over one axis of time, bubbles hatched, with the share of the time they are busy.

    The number in a bar is its group. Times begin at each schedule's start.
    """
    if not schedules:
        raise ValueError("gantt: needs at least one schedule")
    figure, ax = canvas(1.0 + 1.12 * len(schedules))
    longest = max(s.seconds for s in schedules.values())
    for row, (name, schedule) in enumerate(schedules.items()):
        base = 3.1 * (len(schedules) - 1 - row)
        ax.text(0, base + 2.12, name, fontsize=10, weight="bold", va="bottom")
        text = f"overlap efficiency {schedule.efficiency:.0%}"
        ax.text(longest * 1e3, base + 2.12, text, fontsize=9.5, color=GREY, va="bottom", ha="right")
        for stage, y in zip(STAGES, (base + 1.05, base)):
            lane(ax, schedule, stage, y)
            ax.text(longest * 1.012e3, y + 0.45, f"{schedule.busy_share(stage):.0%} busy", va="center", fontsize=10,
                    bbox=dict(facecolor="white", edgecolor="none", pad=1.5))
    ax.set_yticks([3.1 * (len(schedules) - 1 - row) + y for row in range(len(schedules)) for y in (1.5, 0.45)],
                  list(STAGES) * len(schedules))
    ax.set(xlim=(0, longest * 1.12e3), ylim=(-0.15, 3.1 * len(schedules) - 0.35), xlabel="milliseconds")
    ax.grid(axis="y", visible=False)
    ax.spines["left"].set_visible(False)
    bubble = Patch(facecolor="white", edgecolor="#BBBBBB", hatch="////", label="bubble: the stage waits")
    figure.legend(handles=[bubble], loc="outside lower right", fontsize=9)      # not above: titles are long
    if title:
        ax.set_title(title)
    return figure


def lane(ax: Axes, schedule: Schedule, stage: str, y: float) -> None:
    """One stage: its bubbles, and over them its spans."""
    start = schedule.start
    for a, b in schedule.bubbles(stage):
        ax.broken_barh([((a - start) * 1e3, (b - a) * 1e3)], (y, 0.9), facecolor="white", edgecolor="#CCCCCC",
                       hatch="////", linewidth=0)
    groups = 1 + max((s.group for s in schedule.spans), default=0)
    for span in (s for s in schedule.spans if s.stage == stage):
        shade = 0.95 - 0.55 * span.group / groups
        ax.broken_barh([((span.start - start) * 1e3, span.seconds * 1e3)], (y, 0.9), edgecolor="white", linewidth=0.8,
                       facecolor=tint(COLOURS[stage], shade))
        if span.seconds > 0.016 * schedule.seconds:
            middle = ((span.start + span.end) / 2 - start) * 1e3
            ax.text(middle, y + 0.45, str(span.group + 1), ha="center", va="center", fontsize=8.5,
                    color="white" if shade > 0.6 and stage == VERIFY else INK)


@styled
def microbatches(goodput: Mapping[int | str, Mapping], modelled: Mapping[str, Mapping[int, float]],
                 published: Mapping[int, float], here: Mapping[int | str, Mapping] | None = None) -> Figure:
    """Left: goodput by number of micro-batches, "off" and "auto" included: rows with "goodput", "low" and "high" in
    tokens per second. Right: relative to "off", with ``modelled`` and ``published`` curves. ``here``: such rows of the
    reader's own run, as hollow marks."""
    figure, (left, right) = canvas(4.1, 1, 2)
    counts = sorted(c for c in goodput if isinstance(c, int))
    shown = ["off", *counts, "auto"]
    x = np.arange(len(shown))
    middle, low, high = np.array([[goodput[s][key] for s in shown] for key in ("goodput", "low", "high")])
    left.bar(x, middle, 0.62, color=[tint(GREEN, 0.9) if s == "auto" else tint(BLUE, 0.45) for s in shown])
    left.errorbar(x, middle, np.clip([middle - low, high - middle], 0, None), fmt="none", color=INK, capsize=3,
                  linewidth=1.1)
    for at, setting in zip(x, shown):
        if here and setting in here:
            left.plot(at + 0.2, here[setting]["goodput"], **HOLLOW)
    left.set(xlabel="micro-batches (auto: the heuristic chooses)", ylabel="tokens per second", ylim=(0, None),
             xticks=x, xticklabels=shown)
    left.grid(axis="x", visible=False)
    best = max(counts, key=lambda c: goodput[c]["goodput"])
    left.set_title(f"The fastest fixed number: {best}")
    for (name, line), colour, dash in zip(modelled.items(), (BLUE, SKY, ORANGE, GREY), ("-", "-.", "--", ":")):
        right.plot(list(line), list(line.values()), dash, color=colour, label=f"modelled: {name}")
    filled = HOLLOW | {"color": GREEN, "markerfacecolor": GREEN}
    for rows, label, marks in ((goodput, "measured", filled), (here or {}, "this run", HOLLOW)):
        known = [c for c in counts if c in rows]
        right.plot(known, [rows[c]["goodput"] / rows["off"]["goodput"] for c in known], **marks,
                   label=label if known else None)
    right.plot(list(published), list(published.values()), "*", color=RED, markersize=13,
               label="published, Alpaca (V100s)")
    right.axhline(1, color=GREY, linewidth=1, linestyle=":")
    right.set(xlabel="micro-batches", ylabel="goodput / taking turns", xticks=sorted({*counts, *published}))
    right.set_ylim(bottom=0)
    legend_below(figure, right, ncols=4)
    most = max((c for c in counts if c in published), default=1)
    right.set_title(f"{most} micro-batches: measured {goodput[most]['goodput'] / goodput['off']['goodput']:.2f}, "
                    f"published {published[most]:.2f}" if most > 1 else "A single micro-batch gains nothing")
    return figure


@styled
def heuristic(climb: Sequence[Decision], source: str) -> Figure:
    """A climb: what the heuristic measured at each count, and the one that it chose. ``climb``: decisions, the last of
    them the choice; ``source``: where they were made. Raises ValueError if there are none."""
    if not climb or not climb[-1].throughput:
        raise ValueError("heuristic: needs a decision, and what was measured before it")
    figure, ax = canvas(3.0)
    last = climb[-1]
    counts, rates = zip(*sorted(last.throughput.items()))
    ax.plot(counts, rates, "-o", color=BLUE)
    ax.plot([last.count], [last.throughput[last.count]], "o", markersize=15, markerfacecolor="none",
            markeredgecolor=GREEN, markeredgewidth=2.5)
    for count, rate in zip(counts, rates):
        ax.annotate(f"{rate:,.0f}", (count, rate), (10, -14), textcoords="offset points", size=9.5)
    ax.set(xlabel=f"micro-batches ({source})", ylabel="verified requests per second", ylim=(0, max(rates) * 1.25),
           xlim=(min(counts) - 0.4, max(counts) + 0.6), xticks=counts)
    ax.set_title(f"The heuristic climbs to {last.count}, {last.throughput[last.count] / rates[0]:.2f} times as fast as "
                 f"{counts[0]}")
    return figure
