"""The widget of request decomposition: make a batch, cut it, see what it costs."""

from __future__ import annotations

from ipywidgets import Button
from matplotlib.figure import Figure

from spin_core.decompose import plan
from spin_core.decompose.costs import Costs
from spin_core.decompose.plan import LARGE
from spin_core.lab.lessons.l4_decomposition import plots
from spin_core.lab.lessons.l4_decomposition.measure import skewed_lengths
from spin_core.lab.lessons.panel import Panel, slider


def packing(costs: Costs) -> Panel:
    """Sliders for a batch (requests, longest, skew, drafted tokens) and for the width of its pieces.

    The picture has the rows, with padding and copied queries, and what every width would cost under
    ``costs``. It opens as wide as the longest request: a padded batch. The button goes to the cheapest width.
    """
    requests = slider("requests", 8, 2, 24, "in the batch")
    longest = slider("longest, keys", 640, 64, 1024, "keys of the longest request", 16)
    skew = slider("skew", 0.85, 0, 0.95, "0: all equally long; .95: the shortest has a twentieth of the longest", 0.05)
    drafted = slider("drafted γ", 4, 0, LARGE - 1, "drafted tokens of each request; the target reads one more")
    width = slider("width, keys", 640, 64, 1024, "no piece is wider than this")
    cheapest = Button(description="cheapest width", tooltip="the width of the lowest predicted time")

    def batch() -> tuple[list[int], list[int]]:
        queries = drafted.value + 1
        lengths = skewed_lengths(requests.value, longest.value, skew.value, shortest=queries)
        return lengths, [queries] * len(lengths)

    def draw() -> Figure:
        shown = plan(*batch(), "decomposed", costs=costs, width=width.value)
        return plots.packing_and_costs(shown, plan(*batch(), "decomposed", costs=costs), width.value)

    def go(_button) -> None:
        width.value = plan(*batch(), "decomposed", costs=costs).width

    panel = Panel([requests, longest, skew, drafted, width, cheapest], draw,
                  task="Make all requests equally long: is cutting worth anything? Then one long one among many "
                  "short ones.",
                  presets={"all alike": {"skew": 0.0}, "one long, many short": {"skew": 0.95, "requests": 16}})
    cheapest.on_click(go)
    return panel
