"""Lesson 2's figures: training, draft vocabularies, fed states, the pool, and the best drafter of each request."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spin_core.lab import theory
from spin_core.lab.lessons.look import BLUE, GREY, INK, LIGHT, ORANGE, canvas, label, look, styled

Curve = tuple[Sequence[float], Sequence[float]]


@styled
def training(curves: Mapping[str, Curve], here: Mapping[str, Curve]) -> Figure:
    """Tokens per verification (gamma 4, held out) by tokens trained on: ``curves`` from the shipped drafters' logs,
    ``here`` what was trained on this machine, as large marks."""
    figure, ax = canvas(3.4)
    for index, (name, (x, y)) in enumerate(curves.items()):
        colour, marker = look(name, index)
        ax.plot(x, y, color=colour, marker=marker, markersize=5, label=name)
    for name, (x, y) in here.items():
        ax.plot(x, y, color=INK, marker="*", markersize=11, linestyle=":", label=name)
    ax.set_xscale("symlog", linthresh=1000)
    ax.set_xticks([0, 1e3, 1e4, 1e5, 1e6], ["0", "1k", "10k", "100k", "1M"])
    ax.set(xlabel="tokens trained on (0: pruned, not trained)", ylabel="tokens per verification", ylim=(0.97, None))
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    ax.set_title("Held-out answers, four drafted tokens")
    return figure


@styled
def vocabulary(sizes: Sequence[int], coverage: Sequence[float], megabytes: Sequence[float], chosen: int) -> Figure:
    """What a draft vocabulary of the ``sizes`` most frequent ids covers of answers, and what a drafted token reads:
    ``megabytes`` of weights of a one-layer drafter."""
    figure, (left, right) = canvas(3.1, 1, 2)
    left.plot(sizes, coverage, color=ORANGE, marker="o")
    left.set(ylabel="share of answer tokens covered", ylim=(min(coverage) - .05, 1.01))
    left.set_title("No other token can be accepted")
    right.plot(sizes, megabytes, color=GREY, marker="s")
    right.set(ylabel="MB of weights per drafted token", ylim=(0, None))
    right.set_title("The head is most of a small drafter")
    for ax in (left, right):
        ax.set_xscale("log", base=2)
        ax.set_xticks(sizes, [f"{s // 1024}k" for s in sizes])
        ax.set_xlabel("ids in the draft vocabulary")
        ax.axvline(chosen, color=BLUE, linestyle="--", linewidth=1.2)
        ax.minorticks_off()
    left.text(chosen * 1.08, min(coverage) - .03, "shipped", color=BLUE, va="bottom")
    return figure


@styled
def fed(agreement: Mapping[str, Sequence[float]]) -> Figure:
    """How often a drafter's favourite is the target's token, by its place in the draft, behind right tokens only."""
    figure, ax = canvas(3.1)
    for index, (name, y) in enumerate(agreement.items()):
        colour, marker = look(name, index)
        ax.plot(range(1, len(y) + 1), y, color=colour, marker=marker, label=name)
    ax.set(xlabel="place in the draft", ylabel="agreement with the target", ylim=(0, None))
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    ax.set_title("The target's own states help most where they are fresh")
    return figure


@styled
def pool(cost: Mapping[str, float], accepted: Mapping[str, float], lookups: Collection[str] = ()) -> Figure:
    """Strength against price: each drafter's acceptance rate and its cost c, on the speed-up that the theory gives
    to any such pair at its best gamma. ``lookups`` often propose nothing, which the theory does not know: hollow."""
    figure, ax = canvas(3.9)
    ax.set_xscale("log")                    # before the lines are labelled: it moves them
    low = min(min(cost.values()) / 2, .004)
    c, alpha = np.geomspace(low, .6, 90), np.linspace(0.02, .9, 90)
    speed = np.array([[theory.best_gamma(a, x, 16)[1] for x in c] for a in alpha])
    levels = [1.001, 1.1, 1.2, 1.35, 1.5, 1.75, 2, 2.5, 3]
    ax.contourf(c, alpha, speed, [0, 1.001], colors=[LIGHT])
    lines = ax.contour(c, alpha, speed, levels, colors=GREY, linewidths=.9)
    ax.clabel(lines, fmt=lambda v: "no gain" if v < 1.01 else f"{v:g}x", fontsize=9)
    for index, name in enumerate(cost):
        colour, marker = look(name, index)
        hollow = name in lookups
        ax.plot(cost[name], accepted[name], color=colour, marker=marker, markersize=10, linestyle="none",
                markerfacecolor="white" if hollow else colour, markeredgewidth=2 if hollow else 1,
                label=f"{name}, where it proposes" if hollow else name)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set(xlabel="c, cost of a drafted token in target passes", ylabel="share of looked-at drafts accepted",
           ylim=(0, .9), xlim=(low, .6))
    ax.grid(False)
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    ax.set_title("Lines: speed-up at the best gamma, if a pass over gamma + 1 tokens cost what one costs")
    return figure


@styled
def best_share(share: Mapping[str, Mapping[str, float]], counts: Mapping[str, int], published: Mapping[str, float],
               modelled: Mapping[str, Mapping[str, float]] | None = None,
               here: Mapping[str, Mapping[str, float]] | None = None) -> Figure:
    """For which ``share[workload][drafter]`` of the requests each drafter is the fastest; the workload's number of
    requests below it, if it is in ``counts``. ``here``: the shares of the reader's own run, as narrow bars. ``published``: the paper's shares for one of its five, by data set; ``modelled``: those of all
    five."""
    figure, panels = canvas(3.7, 1, 3 if modelled else 2, width_ratios=[3.4, 2.4, 1.1] if modelled else [4, 1.3])
    ax, beside = panels[0], panels[-1]
    _stacked(ax, share, [f"{name}\n{counts[name]}" if name in counts else name for name in share], here)
    most = max((value, name) for name, value in next(reversed(share.values())).items())
    ax.set(ylabel="share of requests", xlabel="workload" + ("; narrow: this run" if here else ""),
           title=f"{most[1]} is the best for {most[0]:.0%} of the {next(reversed(share))}")
    if modelled:
        _stacked(panels[1], modelled, list(modelled))
        panels[1].set_title("Modelled: LLaMA-7B")
    beside.bar(range(len(published)), list(published.values()), .5, color=GREY)
    for place, value in enumerate(published.values()):
        beside.text(place, value + .02, f"{value:.0%}", ha="center")
    beside.set_xticks(range(len(published)), list(published))
    beside.set(ylim=(0, 1), xlim=(-.6, len(published) - .4))
    beside.grid(False)
    beside.set_title("Published")
    beside.set_xlabel("265M of five")
    return figure


def _stacked(ax: Axes, share: Mapping[str, Mapping[str, float]], ticks: list[str],
             here: Mapping[str, Mapping[str, float]] | None = None) -> None:
    """Bars of ``share[workload][drafter]`` on top of each other; narrow ones beside them for ``here``."""
    places, below = np.arange(len(share)), np.zeros(len(share))
    beside = np.zeros(len(share))
    for index, name in enumerate(next(iter(share.values())) if here else ()):
        heights = np.array([here.get(workload, {}).get(name, 0) for workload in share])
        ax.bar(places + .43, heights, .12, bottom=beside, color=look(name, index)[0], edgecolor="white", linewidth=.5)
        beside += heights
    for index, name in enumerate(next(iter(share.values()))):
        heights = np.array([values[name] for values in share.values()])
        bars = ax.bar(places, heights, .66, bottom=below, color=look(name, index)[0], label=name, edgecolor="white")
        for bar, height in zip(bars, heights):
            if height >= .045:
                ax.text(bar.get_x() + .33, bar.get_y() + height / 2, f"{height:.0%}", ha="center", va="center",
                        color="white", fontsize=9, weight="bold")
        below += heights
    ax.set_xticks(places, ticks, fontsize=9)
    ax.set(ylim=(0, 1))
    ax.grid(False)
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))


@styled
def pick(prompt: str, speed: Mapping[str, float], chosen: str | None) -> Figure:
    """One request: its prompt, and what each drafter would have made of it. Without a choice the bars are hidden."""
    figure, (above, ax) = canvas(3.6, 2, 1, height_ratios=[1, 2])
    above.axis("off")
    lines = textwrap.wrap(" ".join(prompt.split()), 105)
    shown = lines[:4] if len(lines) <= 4 else [*lines[:3], lines[3][:100] + " ..."]
    above.text(0, 1, "\n".join(shown), va="top", ha="left", transform=above.transAxes)
    best = max(speed, key=speed.get)
    names = list(speed)
    for index, name in enumerate(names):
        if chosen is None:
            ax.barh(index, 1, color=LIGHT)
            ax.text(.02, index, "?", va="center", color=GREY, weight="bold")
            continue
        ax.barh(index, speed[name], color=look(name, index)[0], alpha=1 if name in (chosen, best) else .35)
        note = [f"{speed[name]:.2f} times plain decoding", *["best"] * (name == best),
                *["your choice"] * (name == chosen)]
        ax.text(speed[name] + .01, index, ", ".join(note), va="center", fontsize=9.5)
    if chosen is not None:
        ax.axvline(1, color=INK, linewidth=1)
    ax.set_yticks(range(len(names)), [label(n, 24) for n in names])
    ax.invert_yaxis()
    ax.set(xlim=(0, 1.45 * max(speed.values())), xlabel="predicted speed-up")
    ax.grid(False)
    if chosen is not None:
        ax.set_title("Right!" if speed[chosen] >= .98 * speed[best] else f"{best} would have been better")
    return figure
