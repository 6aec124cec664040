"""Pictures of a plan: who lies where, what is padding, what is copied, and what each width would have cost."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from spin_core import plots
from spin_core.decompose.plan import Piece, Plan

COLOURS = [plots.BLUE, plots.ORANGE, plots.GREEN, plots.PURPLE, plots.SKY, plots.RED]


def packing(made: Plan, *, title: str | None = None) -> Figure:
    """Every row that is computed: keys to the right, padding hatched, and the queries that each row holds on the left,
    copies of a request's queries pale. Requests are numbered, their colours repeat."""
    rows = [(piece, pool.width, pool.queries) for pool in made.pools for piece in pool.pieces]
    rows += [(Piece(b, 0, made.lengths[b]), made.lengths[b], made.q_lens[b]) for b in made.alone]
    with plots.style():
        figure = Figure(figsize=(plots.WIDTH, 1.5 + 0.2 * max(len(rows), 3)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1, 8))
        colours = {b: COLOURS[i % len(COLOURS)] for i, b in enumerate(dict.fromkeys(p.request for p, _, _ in rows))}
        seen: set[int] = set()
        for y, (piece, width, queries) in enumerate(rows):
            colour = colours[piece.request]
            _bar(right, y, 0, piece.size, colour)
            _bar(right, y, piece.size, width - piece.size, None)
            right.text(piece.size / 2, y, str(piece.request), ha="center", va="center", size=8, color="white",
                       weight="bold")
            needed = made.q_lens[piece.request]
            _bar(left, y, 0, needed, colour, 0.3 if piece.request in seen else 1.0)
            _bar(left, y, needed, queries - needed, None)
            seen.add(piece.request)
        widest = max((width for _, width, _ in rows), default=1)
        right.set(xlim=(0, widest * 1.01), xlabel="keys", ylim=(len(rows) - 0.4, -0.6), yticks=[])
        left.set(xlim=(0, max((q for _, _, q in rows), default=1) * 1.1), xlabel="queries", ylabel="rows computed")
        share = made.kv_touched / made.kv_true if made.kv_true else 1.0
        right.set_title(title or f"{made.strategy}: {len(rows)} rows, {share:.2f} times the keys needed")
        right.legend(handles=[Patch(facecolor=COLOURS[0], label="a request (its number)"),
                              Patch(facecolor=COLOURS[0], alpha=0.3, label="copy of its queries"),
                              Patch(facecolor="white", edgecolor=plots.GREY, hatch="////", label="padding")],
                     loc="upper center", bbox_to_anchor=(0.45, -0.75 / figure.get_figheight()), ncols=3)
    return figure


def cost_curve(made: Plan) -> Figure:
    """Predicted microseconds of a layer for every width that the plan weighed; the chosen one marked.

    Raises ValueError for a plan that was made without costs.
    """
    if not made.considered:
        raise ValueError("cost_curve: this plan weighed no widths; make it with costs, as 'decomposed' or 'auto'")
    widths = sorted(made.considered)
    chosen = min(made.considered, key=made.considered.get)
    with plots.style():
        figure = Figure(figsize=(plots.WIDTH, 3.2), layout="constrained")
        ax = figure.subplots()
        ax.plot(widths, [made.considered[w] * 1e6 for w in widths], color=plots.BLUE, marker="o", markersize=4)
        ax.plot([chosen], [made.considered[chosen] * 1e6], color=plots.RED, marker="D", markersize=9, linestyle="none",
                label=f"chosen: {chosen} keys")
        ax.set(xlabel="keys per piece", ylabel="predicted us per layer", ylim=(0, None),
               title="narrow: copies and merging; wide: padding")
        ax.legend()
    return figure


def _bar(ax: Axes, y: float, x: float, width: float, colour: str | None, alpha: float = 1.0) -> None:
    """A stretch of row ``y``; without a colour it is padding."""
    if width <= 0:
        return
    if colour is None:
        ax.barh(y, width, 0.8, x, facecolor="white", edgecolor=plots.GREY, hatch="////", linewidth=0.5)
    else:
        ax.barh(y, width, 0.8, x, facecolor=colour, edgecolor="white", linewidth=0.5, alpha=alpha)
