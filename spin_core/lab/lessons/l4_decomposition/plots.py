"""What the lesson on request decomposition shows: plans, the price of a width, and what padding costs."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from spin_core.decompose.plan import Piece, Plan
from spin_core.lab.lessons.look import (
    BLUE, GREEN, GREY, INK, LIGHT, ORANGE, PURPLE, RED, SKY, WIDTH, canvas, logarithmic, stretch, styled, tint)

REQUESTS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)      # colours of requests; they repeat
TALLEST = 6.5                                           # inches, of a picture of rows

WAYS = {        # of attending a batch: colour, marker, words
    "padded": (RED, "s", "padded, gathered"),
    "padded_view": (ORANGE, "o", "padded, cache is the rectangle"),
    "grouped": (SKY, "v", "grouped by equal length"),
    "decomposed": (BLUE, "D", "decomposed (SPIN)"),
    "per_request": (GREEN, "^", "each alone, in place"),
    "flex": (PURPLE, "P", "flex attention, block mask"),
    "varlen": (GREY, "X", "flash attention, varlen"),
}
RING = dict(color=INK, marker="o", markersize=13, fillstyle="none", markeredgewidth=1.2, linestyle="none")


@styled
def packing(made: Plan, *, title: str | None = None) -> Figure:
    """Every row that is computed: keys to the right, padding hatched, and the queries that each row holds on
    the left, copies of a request's queries pale. Requests are numbered, their colours repeat."""
    count = len(made.pieces)
    figure = Figure(figsize=(WIDTH, 1.5 + min(0.2 * max(count, 3), TALLEST)), layout="constrained")
    _rows(figure, made, min(0.2, TALLEST / max(count, 1)), title)
    return figure


@styled
def packing_and_costs(shown: Plan, cheapest: Plan, asked: int) -> Figure:
    """The rows of ``shown``, a plan of the width ``asked`` for, and where it is on the cost curve of ``cheapest``.
    The size does not depend on the plan."""
    figure = Figure(figsize=(WIDTH, 6.4), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(1.45, 1))
    padding, copies = shown.kv_touched - shown.kv_true, shown.q_touched - sum(shown.q_lens)
    _rows(above, shown, min(0.2, 2.4 / max(len(shown.pieces), 1)),
          f"at most {asked} keys per row: {len(shown.pieces)} rows, {padding} keys of padding, "
          f"{copies} copied queries")
    ax, widths = below.subplots(), sorted(cheapest.considered)
    ax.plot(widths, [cheapest.considered[w] * 1e6 for w in widths], color=BLUE, marker="o", markersize=4)
    ax.plot([cheapest.width], [cheapest.seconds * 1e6], color=RED, marker="D", markersize=9, linestyle="none",
            label=f"cheapest: {cheapest.width} keys, {cheapest.seconds * 1e6:.0f} us")
    ax.plot([shown.width], [shown.seconds * 1e6], **RING,
            label=f"shown: {shown.width} keys, {shown.seconds * 1e6:.0f} us")
    ax.set(xlabel="keys in the widest piece", ylabel="predicted us per layer", xlim=(0, None),
           ylim=(0, 1.1e6 * max(cheapest.considered.values())),
           title=f"Cheapest at {cheapest.width} keys: narrower pieces copy queries, wider ones pad")
    ax.legend()
    return figure


def _rows(figure: FigureBase, made: Plan, height: float, title: str | None) -> None:
    """The rows of a plan, ``height`` inches each, in a figure or a part of one."""
    rows = [(piece, pool.width, pool.queries) for pool in made.pools for piece in pool.pieces]
    rows += [(Piece(b, 0, made.lengths[b]), made.lengths[b], made.q_lens[b]) for b in made.unpooled]
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1, 8))
    seen: set[int] = set()
    edge = 0.5 if height > 0.05 else 0.0                # an edge would hide a row that is thinner
    for y, (piece, width, queries) in enumerate(rows):
        colour = REQUESTS[piece.request % len(REQUESTS)]
        _bar(right, y, 0, piece.size, colour, edge=edge)
        _bar(right, y, piece.size, width - piece.size, None, edge=edge)
        if height > 0.11:
            right.text(piece.size / 2, y, str(piece.request), ha="center", va="center", color="white",
                       weight="bold", size=min(8, 60 * height))
        needed = made.q_lens[piece.request]
        _bar(left, y, 0, needed, colour, 0.3 if piece.request in seen else 1.0, edge=edge)
        _bar(left, y, needed, queries - needed, None, edge=edge)
        seen.add(piece.request)
    widest, tallest = (max((row[i] for row in rows), default=1) for i in (1, 2))
    right.set(xlim=(0, widest * 1.01), xlabel="keys", ylim=(len(rows) - 0.4, -0.6), yticks=[])
    left.set(xlim=(0, tallest * 1.1), xlabel="queries", ylabel="rows computed")
    share = made.kv_touched / made.kv_true if made.kv_true else 1.0
    right.set_title(title or f"{made.strategy}: {len(rows)} rows, {share:.2f} times the keys needed")
    figure.legend(handles=[Patch(facecolor=REQUESTS[0], label="a request" + " (its number)" * (height > 0.11)),
                           Patch(facecolor=REQUESTS[0], alpha=0.3, label="copy of its queries"),
                           Patch(facecolor="white", edgecolor=GREY, hatch="////", label="padding")],
                  loc="outside lower center", ncols=3)


def _bar(ax: Axes, y: float, x: float, width: float, colour: str | None, alpha: float = 1.0, *,
         edge: float) -> None:
    """A stretch of row ``y``; without a colour it is padding."""
    if width <= 0:
        return
    tall = 0.8 if edge else 1.0
    if colour is None:
        ax.barh(y, width, tall, x, facecolor="white", edgecolor=GREY, hatch="////", linewidth=edge)
    else:
        ax.barh(y, width, tall, x, facecolor=colour, edgecolor="white", linewidth=edge, alpha=alpha)


@styled
def batching_loss(measured: Mapping[str, Mapping[int, tuple]], modelled: Mapping[str, Mapping[int, float]],
                  published: float) -> Figure:
    """The share of the speed-up that padding costs, by batch size.

    ``measured[form][batch]`` is (mean, lowest, highest) of the share in 0 .. 1, ``modelled[form][batch]`` the
    share; forms are keys of ``WAYS`` or "equal", a batch of equal lengths, where there is nothing to lose.
    """
    figure, sides = canvas(3.9, 1, 2, sharey=True)
    looks = WAYS | {"equal": (GREY, "x", "lengths all equal: nothing is padded")}
    for form, shares in measured.items():
        colour, marker, words = looks[form]
        mean, low, high = 100 * np.array(list(shares.values())).T
        sides[0].errorbar(range(len(mean)), mean, yerr=[mean - low, high - mean], color=colour, marker=marker,
                          capsize=3, label=words)
    for form, shares in modelled.items():
        colour, marker, words = looks[form]
        sides[1].plot(range(len(shares)), 100 * np.array(list(shares.values())), color=colour, marker=marker,
                      linestyle=(0, (4, 2)), label=words)
    for ax, forms, what in zip(sides, (measured, modelled), ("measured: the embedded target, here",
                                                             "modelled: LLaMA-7B on a V100")):
        shares, batches = next(iter(forms.values())), list(next(iter(forms.values())))
        most = np.ravel(shares[batches[-1]])[0]
        title = f"{what}\ngathered: {most:.0%} lost at batch {batches[-1]}"
        ax.axhline(0, color=GREY, linewidth=0.8)
        ax.axhline(100 * published, color=INK, linewidth=1, linestyle=":")
        ax.text(-0.3, 100 * published, f"published: about {100 * published:.0f} %", va="bottom", size=9)
        ax.set(xticks=range(len(batches)), xticklabels=batches, xlabel="requests in the batch", title=title,
               xlim=(-0.4, len(batches) - 0.6))
        ax.legend(loc="upper left")
    sides[0].set_ylabel("% of the speed-up lost")
    low, high = sides[0].get_ylim()
    sides[0].set_ylim(low, max(high, 100 * published) * 1.5)
    return figure


@styled
def verify_latency(by_batch: Mapping[int, Mapping[str, float]], by_skew: Mapping[str, Mapping[str, float]],
                   whole: Mapping[str, Mapping[str, float]],
                   elsewhere: Mapping[str, Mapping[str, Mapping[str, float]]], *, here: str, title: str = "") -> Figure:
    """Time of the attention by batch size and by skew of lengths, and the latency of a whole verification.

    ``by_batch[size][way]`` and ``by_skew[name][way]`` are microseconds of a layer measured ``here``, ``way``
    a key of ``WAYS``; "auto" is what the plan chose: a ring around the way that it equals.
    ``whole[kind][way]`` are milliseconds, published or modelled. ``elsewhere[where]`` is like ``by_skew``, measured on
    another machine: a panel for each.
    """
    high = 2 + len(elsewhere) // 2
    figure, grid = canvas(3.7 * high, high, 2, width_ratios=(1, 1.25))
    figure.suptitle(title, x=0.01, ha="left", size=11, weight="bold")
    _dots(grid[0, 0], by_batch, "requests in the batch", f"measured: {here}, Alpaca-like")
    _dots(grid[0, 1], by_skew, "skew of lengths", f"measured: {here}, batch {max(by_batch)}")
    for panel, (there, skews) in zip(grid.flat[3:], elsewhere.items()):
        _dots(panel, skews, "skew of lengths", f"measured: {there}")
    stretch(grid, 3 + len(elsewhere))
    ax = grid[1, 0]
    for i, (kind, times) in enumerate(whole.items()):
        for j, (way, time) in enumerate(times.items()):
            at = i + (j - (len(times) - 1) / 2) * 0.3
            bar = ax.bar(at, time, 0.27, color=WAYS[way][0])
            ax.bar_label(bar, fmt="%.0f", size=8.5)
    ax.set(xticks=range(len(whole)), xticklabels=[kind.replace(", ", ",\n").replace(": ", ":\n") for kind in whole],
           ylabel="ms, whole verification", title="Alpaca, batch 16", xlim=(-0.6, len(whole) - 0.4))
    ax.margins(y=0.12)
    ax.grid(axis="x", visible=False)
    rows = [row for skews in (by_skew, *elsewhere.values()) for row in skews.values()]
    shown = [way for way in WAYS if any(way in row for row in rows)]
    handles = [Line2D([], [], color=WAYS[way][0], marker=WAYS[way][1], linestyle="none", label=WAYS[way][2])
               for way in shown]
    figure.legend(handles=[*handles, Line2D([], [], **RING, label="the plan's choice")],
                  loc="outside lower center", ncols=4)
    return figure


def _dots(ax: Axes, groups: Mapping, xlabel: str, title: str) -> None:
    """A dot for every way of every group, on a logarithmic scale; a ring around the plan's choice."""
    ways = [way for way in WAYS if any(way in times for times in groups.values())]
    for j, way in enumerate(ways):
        colour, marker, _ = WAYS[way]
        at = np.arange(len(groups)) + (j - (len(ways) - 1) / 2) * 0.7 / len(ways)
        ax.plot(at, [times.get(way, np.nan) for times in groups.values()], color=colour, marker=marker,
                linestyle="none")
    for i, times in enumerate(groups.values()):
        # several ways may come to one plan, and to one time: the last of them says best what is done
        same = [j for j, way in enumerate(ways) if way in times and times[way] == times.get("auto")]
        if same:
            at = i + (same[-1] - (len(ways) - 1) / 2) * 0.7 / len(ways)
            ax.plot([at], [times["auto"]], **RING)
    for x in np.arange(len(groups) - 1) + 0.5:
        ax.axvline(x, color=LIGHT, linewidth=0.8)
    ax.set(xticks=range(len(groups)), xticklabels=[str(g) for g in groups], xlabel=xlabel,
           ylabel="us per layer", title=title, xlim=(-0.5, len(groups) - 0.5))
    logarithmic(ax, "y", [m * 10 ** k for k in range(-1, 6) for m in (1, 1.5, 2, 3, 5, 7)])
    ax.grid(axis="x", visible=False)


@styled
def verify_memory(batches: Sequence[int], held: Mapping[str, Sequence[float]],
                  extra: Mapping[str, Sequence[float]], budget: float,
                  modelled: Mapping[str, Sequence[float]], cards: Mapping[str, float], published: int,
                  uncached: Mapping[str, Sequence[float]] | None = None, *, title: str = "") -> Figure:
    """Bytes of a verification by batch size. Left: keys and values ``held`` and what the attention allocates
    beside them, ``extra``, both by way, with a ``budget``; right: ``modelled`` bytes with the weights and the
    memory of some ``cards``; ``published`` is the batch size at which the paper's padded batch runs out of
    memory. ``uncached``: as ``modelled``, for a target without a cache (dotted)."""
    figure, (left, right) = canvas(4.3, 1, 2)
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12)
    x, names = np.arange(len(batches)), list(held)
    for j, way in enumerate(names):
        width = 0.84 / len(names)
        at = x + (j - (len(names) - 1) / 2) * width
        keys, more = np.asarray(held[way]) / 1e6, np.asarray(extra[way]) / 1e6
        left.bar(at, keys, width * 0.92, color=tint(WAYS[way][0], 0.45))
        left.bar(at, more, width * 0.92, bottom=keys, color=WAYS[way][0])
    left.axhline(budget / 1e6, color=INK, linewidth=1, linestyle=":")
    left.text(-0.45, budget / 1e6, f"a budget of {budget / 1e6:.0f} MB", va="bottom", size=9)
    left.set(xticks=x, xticklabels=batches, xlabel="requests in the batch", ylabel="MB",
             title="measured: the embedded target", xlim=(-0.6, len(x) - 0.4))
    left.grid(axis="x", visible=False)
    for way, values in modelled.items():
        right.plot(x, np.asarray(values) / 1e9, color=WAYS[way][0], marker="o", linestyle=(0, (4, 2)))
    for way, values in (uncached or {}).items():
        right.plot(x, np.asarray(values) / 1e9, color=WAYS[way][0], marker="x", linestyle=":")
    for name, size in cards.items():
        right.axhline(size / 1e9, color=INK, linewidth=1, linestyle=":")
        right.text(-0.1, size / 1e9, name, va="bottom", size=9)
    if published in batches:
        at = list(batches).index(published)
        right.axvline(at, color=LIGHT, linewidth=6, zorder=0)
        right.text(at - 0.15, 1, f"published: at {published} padded is out\nof memory, SPIN runs", ha="right",
                   va="bottom", size=9)
    right.set(xticks=x, xticklabels=batches, xlabel="requests in the batch", ylabel="GB", ylim=(0, None),
              title="modelled: LLaMA-7B, weights included")
    handles = [Patch(facecolor=WAYS[way][0], label=WAYS[way][2]) for way in names]
    handles += [Patch(facecolor=tint(GREY, 0.45), label="pale: keys and values held"),
                Patch(facecolor=GREY, label="full: allocated beside them")]
    handles += [Line2D([], [], color=GREY, marker="x", linestyle=":", label="modelled, no cache")] * bool(uncached)
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure
