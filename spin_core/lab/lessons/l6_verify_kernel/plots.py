"""Pictures of the lesson on the verify kernel: what it reads, what biased rules do, and how long verification takes."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from spin_core.lab.lessons.look import (
    BLUE, GREEN, GREY, INK, ORANGE, RED, SERIES, bars, canvas, logarithmic, one, styled, tint)


@styled
def reads(requests: Sequence[tuple[int, int]], logits: Sequence[Sequence[float]],
          q: Sequence[Sequence[float]]) -> Figure:
    """What was loaded of a ragged batch. ``requests`` holds (drafted, accepted) of each request;
    ``logits[b]`` how often each of its drafted + 1 rows was read, ``q[b]`` the same of the drafter's distributions, one
    for each draft.
    """
    most = max(drafted for drafted, _ in requests) + 1
    figure, (left, right) = canvas(1.5 + 0.42 * len(requests), 1, 2, sharey=True, width_ratios=[most, max(1, most - 1)])
    for axes, rows, colour, what in ((left, logits, BLUE, "the target's rows"), (right, q, ORANGE, "the drafter's")):
        read = [n >= 0.05 for times in rows for n in times]
        title = f"{sum(read)} of {len(read)} of {what} are read"
        for b, times in enumerate(rows):
            drafted, accepted = requests[b]
            for j, n in enumerate(times):
                share = 0.0 if n < 0.05 else 0.35 if n < 1.5 else 0.8
                axes.add_patch(Rectangle((j + 0.06, b + 0.1), 0.88, 0.8, facecolor=tint(colour, share),
                                         edgecolor=colour if share else GREY, linewidth=1.0,
                                         linestyle="-" if share else ":"))
                axes.text(j + 0.5, b + 0.5, _times(n), ha="center", va="center", fontsize=9,
                          color="white" if share > 0.5 and colour == BLUE else INK if share else GREY)
        axes.set(xlim=(0, most if axes is left else max(1, most - 1)), ylim=(len(requests), 0), title=title,
                 xticks=np.arange(most if axes is left else most - 1) + 0.5, yticks=np.arange(len(requests)) + 0.5)
        axes.set_xticklabels([f"draft {j + 1}" if j < most - 1 else "" for j in range(len(axes.get_xticks()))],
                             fontsize=9)
        axes.grid(False)
        axes.spines[:].set_visible(False)
    left.set_yticklabels([f"{drafted} drafted, {accepted} accepted" for drafted, accepted in requests])
    figure.supxlabel("In a row: how many times it is loaded. •: one number of it, for the accept test. Empty: nothing "
                     "of it.\nThe last row of a request is for the bonus token.", fontsize=9.5, color=INK)
    return figure


def _times(n: float) -> str:
    if n <= 0:
        return ""
    return "•" if n < 0.05 else f"{n:.0f}×"


@styled
def bias(rules: Mapping[str, tuple[float, float]]) -> Figure:
    """``rules[name]``: total variation distance between the emitted token's distribution and p, and share accepted."""
    distances, rates = zip(*rules.values())
    figure, (left, right) = canvas(1.3 + 0.34 * len(rules), 1, 2, sharey=True)
    colours = [GREEN if distance < 1e-9 else RED for distance in distances]
    bars(left, list(rules), distances, colours, text="{:.3f}")
    bars(right, list(rules), rates, colours)
    left.set(title=f"{colours.count(RED)} of {len(rules)} are biased (red)",
             xlabel="total variation (0 same, 1 nothing in common)")
    most = max(rates)
    right.set(title=f"Most often accepted: a {'biased' if distances[rates.index(most)] >= 1e-9 else 'lossless'} rule",
              xlabel="probability that a step accepts a child", xlim=(0, 1.1))
    return figure


@styled
def times(cpu: Mapping[str, Sequence[float | None]], labels: Sequence[str],
          gpu: Mapping[str, tuple[Sequence[str], Sequence[float | None]]]) -> Figure:
    """``cpu[way]``: milliseconds of verifying each of the batches ``labels``, the first way being the reference.
    ``gpu[series]``: cases and time over the memory's floor, in a panel of their own where there are any."""
    figure, axes = canvas(3.9, 1, 2 if gpu else 1, squeeze=False)
    left = axes[0, 0]
    at = np.arange(len(labels))
    for i, (way, values) in enumerate(cpu.items()):
        left.plot(at, values, "osD^"[i % 4], linestyle="none", markersize=8,
                  color=[BLUE, GREY, ORANGE, GREEN][i % 4], label=way)
    left.set(ylabel="milliseconds, this CPU (measured)", xticks=at, xlabel="vocabulary × batch, 4 drafts each",
             title=_lead(cpu), xlim=(-0.4, len(labels) - 0.6))
    left.set_xticklabels(labels)
    low, high = (f(f(values) for values in cpu.values()) for f in (min, max))
    left.set_ylim(low / 1.6, high * 4)
    left.legend(loc="upper left")
    logarithmic(left, "y")
    if not gpu:
        return figure
    right = axes[0, 1]
    right.set_title("A GPU: time over the floor")
    for i, (name, (cases, values)) in enumerate(gpu.items()):
        colour, marker = SERIES[i % len(SERIES)]
        right.plot(range(len(cases)), [np.nan if v is None else v for v in values], marker, linestyle="-",
                   color=colour, label=name)
    cases = max((cases for cases, _ in gpu.values()), key=len)
    one(right)
    right.set(xticks=range(len(cases)), ylabel="times the floor (1: as fast as a copy)")
    right.set_xticklabels(cases, fontsize=8.5, rotation=30, ha="right")
    right.legend(fontsize=8.5)
    logarithmic(right, "y")
    return figure


def _lead(cpu: Mapping[str, Sequence[float | None]]) -> str:
    """How many times as long the second way takes as the first."""
    (first, one), (second, other), *_ = cpu.items()
    ratios = [b / a for a, b in zip(one, other) if a and b]
    return f"{first}: {min(ratios):.1f} to {max(ratios):.1f} times as fast as the {second}"
