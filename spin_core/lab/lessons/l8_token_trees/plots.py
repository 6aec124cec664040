"""Pictures of the lesson on token trees."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from spin_core.lab.lessons.l8_token_trees.measure import Estimate
from spin_core.lab.lessons.l8_token_trees.steps import TreeStep, Trial
from spin_core.lab.lessons.look import (
    BLUE, GREEN, GREY, HOLLOW, INK, MONO, ORANGE, PURPLE, Q_COLOUR, RED, SERIES, SKY, canvas, headline, label,
    legend_below, styled, tint)

DRAFTER_COLOURS = (ORANGE, SKY, PURPLE, "#F0E442")      # drafters, in their order
PANELS = 4                                  # tests at a node: three children, and the target's draw


@styled
def tree(step: TreeStep, drafters: Sequence[str], note: str = "") -> Figure:
    """A verified tree, and the mask of the pass that verified it. ``drafters``: the names, in their order; ``note``
    goes before the title."""
    count, levels = len(step.tokens), step.depths
    order = _leaves_first(step.parents)
    row = {node: i for i, node in enumerate(order)}
    high = max(2.9, 1.35 + 0.3 * count)
    figure, (left, right) = canvas(min(high, 9), 1, 2, width_ratios=[1.55, 1])
    path = set(step.path)
    size = 9.5 if count <= 16 else 7.5
    at = {-1: (0.0, -0.1 if not count else row[order[0]])} | {n: (levels[n] + 1.0, row[n]) for n in range(count)}
    for node, parent in enumerate(step.parents):
        (x0, y0), (x1, y1) = at[parent], at[node]
        kept = node in path
        left.plot([x0 + 0.12, x0 + 0.3, x1 - 0.42], [y0, y1, y1], color=GREEN if kept else "#BBBBBB",
                  linewidth=2.4 if kept else 1.2, zorder=1)
    text = label(step.before[-14:], 14) if step.before else "(the prompt)"
    left.text(0.1, at[-1][1], text, ha="right", va="center", fontsize=size, family=MONO, color=INK)
    for node in range(count):
        x, y = at[node]
        colours = [DRAFTER_COLOURS[drafters.index(name) % len(DRAFTER_COLOURS)] for name in step.drafters[node]]
        for i, colour in enumerate(colours):
            width = 0.78 / len(colours)
            left.add_patch(Rectangle((x - 0.4 + i * width, y - 0.36), width, 0.72, facecolor=tint(colour, 0.55),
                                     edgecolor="none", zorder=2))
        left.add_patch(Rectangle((x - 0.4, y - 0.36), 0.78, 0.72, facecolor="none", zorder=3,
                                 edgecolor=GREEN if node in path else "#AAAAAA",
                                 linewidth=2.2 if node in path else 0.8))
        left.text(x, y, label(step.tokens[node], 9), ha="center", va="center", fontsize=size, family=MONO, zorder=4)
    if step.own is not None:
        x, y = at[step.path[-1]] if step.path else at[-1]
        left.text(max(levels, default=0) + 1.75, y, f"→ {label(step.own, 9)}", va="center", fontsize=size, family=MONO,
                  color=BLUE, weight="bold")
        left.plot([x + (0.42 if step.path else 0.14), max(levels, default=0) + 1.7],
                  [y + 0.42, y + 0.42] if step.path else [y - 0.45, y - 0.45],
                  color=BLUE, linewidth=1, linestyle=(0, (2, 2)))
    left.set(xlim=(-1.0, max(levels, default=0) + 2.5), ylim=(count - 0.4, -0.8),
             xticks=range(1, max(levels, default=0) + 2), yticks=[],
             title=f"{note}{count} nodes, {len(step.path)} accepted")
    left.set_xticklabels([f"depth {d}" for d in range(1, max(levels, default=0) + 2)])
    left.grid(False)
    left.spines[:].set_visible(False)
    names = [Patch(facecolor=tint(DRAFTER_COLOURS[i % len(DRAFTER_COLOURS)], 0.55), label=name)
             for i, name in enumerate(drafters)]
    left.legend(handles=[*names, Line2D([], [], color=GREEN, linewidth=2.4, label="accepted")], loc="upper center",
                bbox_to_anchor=(0.5, -0.06), ncols=len(drafters) + 1)
    _mask(right, step, path)
    return figure


def _mask(axes: Axes, step: TreeStep, path: set[int]) -> None:
    """Rows: queries, columns: keys; first what all see, the text."""
    mask, count = step.mask.numpy(), len(step.tokens)
    axes.add_patch(Rectangle((-3, -0.5), 2.4, count, facecolor=tint(BLUE, 0.35)))
    axes.text(-1.8, count / 2 - 0.5, "the text so far, seen by all", rotation=90, ha="center", va="center", fontsize=9)
    for i, j in zip(*mask.nonzero()):
        kept = i in path and j in path
        axes.add_patch(Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, facecolor=GREEN if kept else tint(INK, 0.55)))
    size = 8.5 if count <= 16 else 6.5
    axes.set(xlim=(-3.1, count - 0.4), ylim=(count - 0.4, -0.6), yticks=range(count), xticks=[],
             title="The mask: a row sees its ancestors")
    axes.set_yticklabels([label(t, 9) for t in step.tokens], family=MONO, fontsize=size)
    axes.set_xlabel("nodes as keys, in the order of the cache", fontsize=9.5)
    axes.set_aspect("auto")
    axes.grid(False)


def _leaves_first(parents: Sequence[int]) -> list[int]:
    """Nodes in the order of a walk that goes down before it goes on: no two edges cross."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    out, stack = [], list(reversed(children.get(-1, [])))
    while stack:
        node = stack.pop()
        out.append(node)
        stack += reversed(children.get(node, []))
    return out


@styled
def trials(found: Sequence[Trial], shown: int, title: str) -> Figure:
    """The tests at one node, the first so many that are ``shown``: p as left, the q of the child, its fate."""
    tokens = np.arange(len(found[0].p))
    figure, row = canvas(3.9, 1, PANELS, sharey=True)
    headline(figure, title)
    for number, axes in enumerate(row):
        axes.grid(False, axis="x")
        if number >= min(shown, len(found)):
            axes.set_axis_off()
            if number < shown:
                axes.text(0.5, 0.5, "not needed:\nthe token is there", transform=axes.transAxes, ha="center",
                          color=GREY)
            continue
        one = found[number]
        last = one.u is None
        axes.bar(tokens - 0.2, one.p, 0.38, color=SKY if number else BLUE)
        axes.bar(tokens + 0.2, one.q, 0.38, color=tint(Q_COLOUR, 0.8))
        colour = GREEN if one.accepted else RED
        axes.axvspan(one.token - 0.48, one.token + 0.48, color=tint(colour, 0.18), zorder=0)
        axes.set(xticks=tokens, xlabel="token", ylim=(0, 1.05),
                 title="the target draws" if last else f"child {number + 1}: token {one.token}")
        fate = "accepted" if one.accepted else "rejected"
        said = (f"token {one.token}: emitted" if last else
                f"u = {one.u:.2f}, p/q = {one.p[one.token] / one.q[one.token]:.2f}\n{fate}")
        axes.text(0.5, 0.97, said, transform=axes.transAxes, ha="center", va="top", color=colour, fontsize=9.5)
    row[0].set_ylabel("probability")
    figure.legend(handles=[Patch(facecolor=BLUE, label="p"), Patch(facecolor=SKY, label="residual: what is left of p"),
                           Patch(facecolor=tint(Q_COLOUR, 0.8), label="q of the child")], loc="outside lower center",
                  ncols=3)
    return figure


@styled
def width(nodes: Sequence[int], expected: Mapping[str, Mapping[str, Sequence[float]]],
          points: Mapping[int, float], chain: tuple[int, float]) -> Figure:
    """Tokens per verification by the number of nodes: a panel for each of ``expected``, a line for each way in it.
    ``points``: measured ones of the last panel's best tree; ``chain``: nodes and tokens of a measured chain."""
    figure, ((*row,),) = canvas(3.8, 1, len(expected), sharey=True, squeeze=False)
    for axes, (name, ways) in zip(row, expected.items()):
        for (way, tokens), (colour, marker) in zip(ways.items(), ((GREY, "o"), (GREEN, "s"))):
            axes.plot(nodes, tokens, color=colour, marker=marker, markersize=4, label=way)
        gain = max(ways["best tree"]) / max(ways["chain"])
        axes.set(title=f"{name.replace(': ', chr(10), 1)}\nthe best tree: {gain:.2f} times a chain",
                 xlabel="drafted nodes", ylim=(1, None))
    row[-1].plot(*chain, "*", color=GREY, markersize=13, label="chain, measured")
    row[-1].plot(list(points), list(points.values()), "*", color=GREEN, markersize=13, label="best tree, measured")
    row[-1].set_title(f"{row[-1].get_title('left')}, measured {max(points.values()) / chain[1]:.2f}")
    row[-1].legend(loc="upper left", ncols=2)
    row[0].set_ylabel("tokens per verification")
    return figure


@styled
def tables(match: Mapping[str, Mapping[str, Sequence[Estimate]]], tau: Mapping[str, Mapping[int, Estimate]],
           published_match: Mapping[str, Sequence[float]], published_tau: Mapping[str, Mapping[int, float]],
           here: tuple[Mapping, Mapping]) -> Figure:
    """SpecInfer's first two tables. ``match[way][drafter]``, ways being "greedy" and "sampled": share of the target's
    tokens among the drafter's first 1, 2, ...; ``tau[way][width]``: tokens per verification. Published ones are dashed.
    ``here``: both of the reader's own run, as hollow marks."""
    figure, axes = canvas(5.6, 2, 2, sharey="row")
    for (above, below), way in zip(axes.T, match):
        for i, (name, rates) in enumerate(match[way].items()):
            _line(above, range(1, len(rates) + 1), rates, i, f"{name}, measured")
            mine = here[0][way].get(name, ())
            above.plot(range(1, len(mine) + 1), [one.value for one in mine], **HOLLOW | {"color": SERIES[i][0]})
        best = max(match[way].values(), key=lambda rates: rates[-1].value)
        above.set(title=f"{way}: first guess right {best[0].value:.0%}, one of {len(best)} {best[-1].value:.0%}",
                  xlabel="k", xticks=range(1, 6), ylim=(0, 1.02))
        widths = sorted(tau[way])
        _line(below, widths, [tau[way][w] for w in widths], 0, f"{next(iter(match[way]))}, measured")
        below.plot(list(here[1][way]), [one.value for one in here[1][way].values()], label="this run",
                   **HOLLOW | {"color": SERIES[0][0]})
        for panel, known in ((above, dict(enumerate(published_match[way], 1))), (below, published_tau[way])):
            panel.plot(list(known), list(known.values()), color=GREY, marker="D", markerfacecolor="white",
                       linestyle=(0, (4, 2)), linewidth=1.4, label="SpecInfer, published")
        gain = tau[way][widths[-1]].value / tau[way][widths[0]].value
        below.set(title=f"{way}: {widths[-1]} children bring {gain:.2f}× the tokens of {widths[0]}",
                  xlabel="children at the third level", xticks=widths)
        below.set_ylim(bottom=1)
    axes[0, 0].set_ylabel("token among the first k")
    axes[1, 0].set_ylabel("tokens per verification")
    legend_below(figure, *axes[:, 0], ncols=5)
    return figure


def _line(axes: Axes, x: Sequence, values: Sequence[Estimate], number: int, label: str) -> None:
    """Measured values with their intervals, where there are any."""
    colour, marker = SERIES[number % len(SERIES)]
    spread = [[one.value - one.low, one.high - one.value] if one.low is not None else [0, 0] for one in values]
    axes.errorbar(x, [one.value for one in values], np.transpose(spread), color=colour, marker=marker, label=label,
                  capsize=3, elinewidth=1.2)


@styled
def latency(cost: Mapping[int, Mapping[int, float]]) -> Figure:
    """``cost[batch][width]``: milliseconds per token and request, one map. In each row the fastest width is framed; red
    is slower than the first width."""
    batches, widths = list(cost), list(next(iter(cost.values())))
    relative = np.array([[cost[b][w] / cost[b][widths[0]] for w in widths] for b in batches])
    figure, axes = canvas(1.5 + 0.5 * len(batches))
    spread = max(0.05, float(np.abs(relative - 1).max()))
    axes.imshow(1 - relative, cmap=LinearSegmentedColormap.from_list("", [tint(RED, 0.6), "white", tint(GREEN, 0.6)]),
                vmin=-spread, vmax=spread, aspect="auto")
    for i, row in enumerate(relative):
        for j in range(len(row)):
            axes.text(j, i, f"{cost[batches[i]][widths[j]]:.0f} ms", ha="center", va="center", fontsize=9)
        axes.add_patch(Rectangle((row.argmin() - 0.49, i - 0.47), 0.98, 0.94, fill=False, edgecolor=INK, linewidth=2.2))
    axes.set(xticks=range(len(widths)), xticklabels=widths, yticks=range(len(batches)), yticklabels=batches,
             xlabel="children at the third level", ylabel="requests served at once",
             title=f"{widths[-1]} children: a token takes {relative[0, -1]:.2f}× as long as with {widths[0]} at batch "
                   f"{batches[0]}, {relative[-1, -1]:.2f}× at {batches[-1]} (framed: the fastest)")
    axes.grid(False)
    return figure
