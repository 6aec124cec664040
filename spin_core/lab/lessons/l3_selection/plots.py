"""Pictures of the lesson on selection. Policies keep their colour in all of them."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from spin_core.lab.lessons.look import (
    BLUE, GREEN, GREY, INK, LIGHT, ORANGE, PURPLE, RED, SKY, canvas, logarithmic, look, styled)

POLICY = {"spin": BLUE, "spin-full": GREEN, "greedy": RED, "epsilon-greedy": ORANGE, "thompson": PURPLE, "ucb": SKY}


def policy_colour(name: str) -> str:
    """A policy's colour; fixed drafters, ceilings and what is not ours are grey."""
    return POLICY.get(name.partition(",")[0], GREY)


def arm_colours(arms: Sequence[str]) -> list[str]:
    """One colour per drafter; no speculation is pale."""
    return [LIGHT if arm == "none" else look(arm, i)[0] for i, arm in enumerate(arms)]


@styled
def bars(goodput: Mapping[str, tuple[float, float]], ceilings: Mapping[str, float], published: Mapping[str, float],
         here: Mapping[str, tuple[float, float]], *, title: str) -> Figure:
    """Goodput of policies, as multiples of plain decoding's, with half of their 95 % interval, dashed ceilings,
    hollow marks of the reader's run, ``here``, with theirs; right, what the paper says: the last over the first."""
    figure, (left, right) = canvas(0.32 * len(goodput) + 1.5, 1, 2, width_ratios=(2.4, 1))
    values, errors = zip(*goodput.values())
    bars = left.barh(list(goodput), values, xerr=errors, height=.66, color=[policy_colour(n) for n in goodput])
    left.bar_label(bars, [f"{value:.2f}" for value in values], label_type="center", color="white", size=9,
                   weight="bold")
    for at, (name, (value, error)) in enumerate(here.items()):
        left.errorbar(value, name, xerr=error, fmt="o", color=INK, markerfacecolor="white", elinewidth=1, capsize=2,
                      label="this run" if not at else None)
    for style, (name, value) in zip(("--", ":", "-."), ceilings.items()):
        left.axvline(value, ls=style, color=INK, lw=1.4, label=f"{name} {value:.2f}")
    right.bar_label(right.barh(list(published), list(published.values()), height=.66, color=GREY), label_type="center",
                    color="white", weight="bold")
    left.invert_yaxis()
    left.set(xlabel="goodput, times plain decoding's", title=title)
    (first, slow), (last, fast) = list(published.items())[0], list(published.items())[-1]
    right.set(xlabel="tokens per second (published, V100s)", ylim=left.get_ylim(),
              title=f"{last}: {fast / slow:.2f} times\n{first}")
    for ax in (left, right):
        ax.grid(axis="y", visible=False)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=4)
    return figure


@styled
def regret(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
           long: Mapping[str, tuple[Sequence[float], Sequence[float]]], slope: float, *, title: str = "") -> Figure:
    """Seconds lost against oracle-request by tokens written; right, expected tokens lost on one endless request by log
    steps, and the ``slope`` of theory's bound: tokens for each factor e of steps."""
    figure, (left, right) = canvas(3.7, 1, 2)
    for ax, lines in ((left, curves), (right, long)):
        for name, (x, y) in lines.items():
            grey = name.startswith("fixed")
            ax.plot(x, y, color=policy_colour(name), ls=":" if grey else "-", label=name, lw=1.6 if grey else 2)
    left.set(xlabel="tokens written, all requests", ylabel="seconds lost against oracle-request",
             title=textwrap.fill(title, 44))
    left.legend(fontsize=8.5)
    late = np.array([step for step in next(iter(long.values()))[0] if step >= 30], float)
    anchor = min(np.interp(30, x, y) for x, y in long.values())
    right.plot(late, anchor + slope * np.log(late / 30), "--", color=INK, lw=1.6, label="theory: slope of the bound")
    logarithmic(right, "x")
    least = min(long, key=lambda name: long[name][1][-1])
    right.set(xlabel="steps of one endless request", ylabel="tokens expected to be lost",
              title=f"Least lost after {long[least][0][-1]:,.0f} steps:\n{least}, {long[least][1][-1]:.0f} tokens")
    ends = sorted(float(y[-1]) for _, y in long.values())
    if len(ends) > 1 and ends[-1] > 2 * ends[-2] > 0:       # one that never learns would squeeze all others flat
        low, top = min(float(np.min(y)) for _, y in long.values()), 1.3 * ends[-2]
        right.set_ylim(min(0.0, low) - .04 * top, top)
    right.legend(fontsize=8.5)
    return figure


@styled
def choices(maps: Mapping[str, np.ndarray], arms: Sequence[str], best: Sequence[int], *, most: int = 20) -> Figure:
    """The drafter of each request (row) at each of its steps (column): ``maps[policy] [R, steps]``, -1 where it had
    ended.

    ``most`` requests are drawn, evenly spread over all of them when sorted by their ``best`` drafter in hindsight,
    which a strip on the left shows. Each panel's title says in what share of all steps a request has that drafter.
    """
    figure, axes = canvas(4.6, 1, len(maps), sharey=True, squeeze=False)
    cmap, norm = ListedColormap(["white", *arm_colours(arms)]), BoundaryNorm(np.arange(-1.5, len(arms)), len(arms) + 1)
    best, axes = np.asarray(best), axes[0]
    order = np.argsort(best, kind="stable")
    order = order[np.linspace(0, len(order) - 1, min(most, len(order))).round().astype(int)]
    for ax, (name, grid) in zip(axes, maps.items()):
        steps, like = grid.shape[1], (grid == best[:, None])[grid >= 0].mean()
        ax.pcolormesh(np.arange(steps + 1), np.arange(len(order) + 1), grid[order], cmap=cmap, norm=norm,
                      edgecolors="white", linewidth=.4)
        ax.pcolormesh([-3, -1], np.arange(len(order) + 1), best[order][:, None], cmap=cmap, norm=norm,
                      edgecolors="white")
        ax.set(xlabel="step of the request", title=f"{name}: the strip's drafter in {like:.0%} of the steps",
               ylim=(len(order), 0), xlim=(-3, steps), yticks=[])
        ax.grid(False)
        ax.spines[:].set_visible(False)
    axes[0].set_ylabel("requests, sorted by their best drafter (strip)")
    used = sorted({int(a) for grid in maps.values() for a in np.unique(grid[order]) if a >= 0}
                  | {*best[order].tolist()})
    figure.legend(handles=[Patch(color=arm_colours(arms)[a], label=arms[a]) for a in used], loc="outside lower center",
                  ncols=len(used))
    return figure


@styled
def capacity(places: Sequence[int], goodput: Mapping[str, Sequence[float]], *, title: str = "") -> Figure:
    """Goodput by how many requests of the batch each model drafter can serve."""
    figure, ax = canvas(3.2)
    for name, y in goodput.items():
        ax.plot(places, y, marker="o", ls=":" if name.startswith("fixed") else "-", color=policy_colour(name),
                label=name)
    ax.set(xlabel="places of every model drafter", ylabel="tokens per second", title=title, xticks=places,
           ylim=(0, 1.08 * max(max(y) for y in goodput.values())))        # room for the highest marker
    ax.legend(loc="center left", bbox_to_anchor=(1, .5))
    return figure


@styled
def live(goodput: Mapping[str, tuple[Sequence[float], Sequence[float]]],
         lost: Mapping[str, tuple[Sequence[float], Sequence[float]]], shares: np.ndarray, arms: Sequence[str],
         shift: float | None, *, title: str = "", setting: str = "") -> Figure:
    """A replay as a story: goodput and seconds lost by tokens written, and the drafters' shares.

    ``shares [windows, arms]``: of "spin". ``shift``: tokens after which the workload changes.
    ``setting``: a line above.
    """
    figure, (a, b, c) = canvas(3.6, 1, 3)
    figure.suptitle(setting, fontsize=10, color=GREY)
    others = [n for n in goodput if n not in POLICY]
    for ax, lines in ((a, goodput), (b, lost)):
        for name, (x, y) in lines.items():
            known = name in POLICY
            ax.plot(x, y, color=policy_colour(name) if known else INK if name.startswith("oracle") else GREY,
                    ls="-" if known else ("--", ":", "-.", (0, (1, 3)))[others.index(name) % 4], label=name)
        ax.set(xlabel="tokens written")
        if shift:
            ax.axvline(shift, color=GREY, lw=1)
    x = next(iter(goodput.values()))[0]
    c.stackplot(np.linspace(0, x[-1], len(shares)), shares.T, colors=arm_colours(arms), labels=arms)
    part = shares.mean(0)
    c.set(xlabel="tokens written", ylabel="share of the drafters", ylim=(0, 1),
          title=f"“{arms[part.argmax()]}” drafts {part.max():.0%}")
    a.set(title=title, ylabel="tokens per second", ylim=(0, None))
    b.set(ylabel="seconds lost against the oracle")
    if "spin" in lost:
        b.set_title(f"spin: {lost['spin'][1][-1]:.2f} s lost")
    figure.legend(handles=[*a.get_lines()[:len(goodput)], *c.collections], loc="outside lower left", ncols=5,
                  fontsize=9)
    return figure
