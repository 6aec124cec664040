"""The widget of request decomposition: make a batch, cut it, see what it costs."""

from __future__ import annotations

from ipywidgets import Button, FloatSlider, IntSlider
from matplotlib.figure import Figure

from spin_core.decompose import plan
from spin_core.decompose.costs import Costs
from spin_core.decompose.plan import LARGE
from spin_core.lab.lessons.l4_decomposition import plots
from spin_core.lab.lessons.l4_decomposition.measure import skewed_lengths
from spin_core.lab.lessons.panel import Panel


def packing(costs: Costs) -> Panel:
    """Sliders for a batch (requests, longest, skew, drafted tokens) and for the width of its pieces.

    The picture has the rows, with padding and copied queries, and what every width would cost under
    ``costs``. It opens as wide as the longest request: a padded batch. The button goes to the cheapest width.
    """
    requests = IntSlider(8, 2, 24, description="requests", tooltip="in the batch", continuous_update=False)
    longest = IntSlider(640, 64, 1024, step=16, description="longest, keys", tooltip="context of the longest request",
                        continuous_update=False)
    skew = FloatSlider(0.85, min=0, max=0.95, step=0.05, description="skew", tooltip="0: all alike; near 1: one long, many short",
                       continuous_update=False)
    drafted = IntSlider(4, 0, LARGE - 1, description="drafted γ", tooltip="drafted tokens per request",
                        continuous_update=False)
    width = IntSlider(640, 64, 1024, description="width, keys", tooltip="of a piece", continuous_update=False)
    cheapest = Button(description="cheapest width", tooltip="set the width that costs least")

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
                  task="Make all requests equally long: is cutting worth anything? Then one long one among many short ones.",
                  presets={"all alike": {"skew": 0.0}, "one long, many short": {"skew": 0.95, "requests": 16}})
    cheapest.on_click(go)
    return panel
