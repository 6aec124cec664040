"""Lesson 5's figures: when each stage works, goodput by number of micro-batches, the heuristic's climb."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from spin_core.lab.lessons.look import BLUE, GREEN, GREY, INK, ORANGE, RED, SKY, canvas, styled, tint
from spin_core.pipeline.heuristic import Decision
from spin_core.pipeline.schedule import DRAFT, STAGES, VERIFY, Schedule

COLOURS = {DRAFT: ORANGE, VERIFY: BLUE}
Spread = tuple[Sequence[float], Sequence[float], Sequence[float]]
"""Medians, lowest and highest."""


@styled
def gantt(schedules: Mapping[str, Schedule], *, title: str = "") -> Figure:
    """Both stages of each schedule over one axis of time, bubbles hatched, with the share of the time they are busy.

    The number in a bar is its group. Times begin at each schedule's start.
    """
    if not schedules:
        raise ValueError("gantt: needs at least one schedule")
    figure, ax = canvas(0.75 + 1.12 * len(schedules))
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
    ax.legend(handles=[Patch(facecolor="white", edgecolor="#BBBBBB", hatch="////", label="bubble: the stage waits")],
              loc="lower right", bbox_to_anchor=(1, 1.0), borderaxespad=0.3, fontsize=9)
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
def microbatches(counts: Sequence[int], measured: Spread, sequential: float, modelled: Mapping[str, Sequence[float]],
                 published: Mapping[int, float], *, chosen: Sequence[int] = ()) -> Figure:
    """Goodput by number of micro-batches: here in tokens per second, and against one micro-batch.

    ``sequential`` is the engine without a pipeline; ``modelled`` are curves relative to it, ``published`` points
    relative to one micro-batch. ``chosen`` are the heuristic's counts.
    """
    figure, (left, right) = canvas(3.9, 1, 2)
    median, low, high = (np.asarray(v, float) for v in measured)
    x = np.arange(len(counts))
    left.bar(x, median, 0.62, color=[tint(GREEN, 0.9) if c in chosen else tint(BLUE, 0.45) for c in counts])
    spread = np.clip([median - low, high - median], 0, None)
    left.errorbar(x, median, spread, fmt="none", color=INK, capsize=3, linewidth=1.1)
    left.axhline(sequential, color=GREY, linestyle="--", linewidth=1.4)
    left.set(xlabel="micro-batches", ylabel="tokens per second", ylim=(0, max(high.max(), sequential) * 1.24))
    left.set_xticks(x, counts)
    left.grid(axis="x", visible=False)
    left.legend(handles=[*([Patch(color=tint(GREEN, 0.9), label="the heuristic's choice")] if chosen else []),
                         left.lines[-1]], loc="upper right",
                labels=[*(["the heuristic's choice"] if chosen else []), "no pipeline (all cores take turns)"])
    left.set_title("Measured here")
    top = max([1.35, *(max(v) for v in modelled.values()), *(median / sequential)])
    for (name, values), colour, dash in zip(modelled.items(), (BLUE, SKY, ORANGE, GREY), ("-", "-.", "--", ":")):
        right.plot(counts, values, dash, color=colour, label=f"modelled: {name}")
    right.plot(counts, median / sequential, "o", color=GREEN, markeredgecolor="white", label="measured here")
    if published:
        right.plot(list(published), list(published.values()), "*", color=RED, markersize=13,
                   label="published, Alpaca (V100s)")
    right.axhline(1, color=GREY, linewidth=1, linestyle=":")
    right.set(xlabel="micro-batches", ylabel="goodput / taking turns", ylim=(0, top * 1.6))
    right.set_xticks(sorted({*counts, *published}))
    right.legend(loc="upper right")
    right.set_title("Against taking turns")
    return figure


@styled
def heuristic(climb: Sequence[Decision], source: str, fixed: Mapping[int, float], auto: float) -> Figure:
    """Left: a climb, what the heuristic measured at each count and the one that it chose, modelled by ``source``. Right:
    its goodput on this machine beside every fixed count's, ``fixed`` and ``auto``, relative to the best of these.

    ``climb``: decisions, the last of them the choice. Raises ValueError if there are none.
    """
    if not climb or not climb[-1].throughput:
        raise ValueError("heuristic: needs a decision, and what was measured before it")
    figure, (left, right) = canvas(3.4, 1, 2, width_ratios=[1.2, 1])
    last = climb[-1]
    counts, rates = zip(*sorted(last.throughput.items()))
    left.plot(counts, rates, "-o", color=BLUE)
    left.plot([last.count], [last.throughput[last.count]], "o", markersize=15, markerfacecolor="none",
              markeredgecolor=GREEN, markeredgewidth=2.5)
    for count, rate in zip(counts, rates):
        left.annotate(f"{rate:,.0f}", (count, rate), (10, -14), textcoords="offset points", size=9.5)
    left.set(xlabel=f"micro-batches ({source})", ylabel="verified requests per second", ylim=(0, max(rates) * 1.25),
             xlim=(min(counts) - 0.4, max(counts) + 0.6))
    left.set_xticks(counts)
    left.set_title(f"Where it pays it climbs: {last.count} chosen, {last.throughput[last.count] / rates[0]:.2f}× of one")
    best = max(fixed, key=fixed.get)
    names, values = [*map(str, fixed), "heuristic"], [*fixed.values(), auto]
    right.barh(np.arange(len(names))[::-1], values, 0.62, color=[tint(BLUE, 0.45)] * len(fixed) + [tint(GREEN, 0.9)])
    for y, value in zip(range(len(names))[::-1], values):
        right.text(value + 0.015, y, f"{value:.2f}", va="center", fontsize=10)
    right.set_yticks(np.arange(len(names))[::-1], names)
    right.set(xlabel="goodput / best fixed count (measured here)", ylabel="micro-batches", xlim=(0, max(values) * 1.16))
    right.grid(axis="y", visible=False)
    right.set_title(f"Here {best} is the best")
    return figure
