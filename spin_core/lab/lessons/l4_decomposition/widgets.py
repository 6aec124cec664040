"""The widget of request decomposition: make a batch, cut it, see what it costs."""

from matplotlib.figure import Figure

from spin_core.decompose import plan
from spin_core.decompose.costs import Costs
from spin_core.decompose.plan import LARGE, Plan
from spin_core.lab.lessons.l4_decomposition import plots
from spin_core.lab.lessons.l4_decomposition.measure import skewed_lengths
from spin_core.lab.lessons.panel import Panel, button, slider


def packing(costs: Costs) -> Panel:
    """Sliders for a batch (requests, longest, skew, drafted tokens) and for the width of its pieces.

    The picture has the rows, with padding and copied queries, and what every width would cost under
    ``costs``. It opens as wide as the longest request: a padded batch. The button goes to the cheapest width.
    """
    controls = [slider("requests", 8, 2, 24, "in the batch"),
                slider("longest, keys", 640, 64, 1024, "keys of the longest request", 16),
                slider("skew", 0.85, 0, 0.95, "0: all equally long; .95: the shortest has a twentieth of the longest",
                       0.05),
                slider("drafted γ", 4, 0, LARGE - 1, "drafted tokens of each request; the target reads one more"),
                slider("width, keys", 640, 64, 1024, "no piece is wider than this")]

    def cheapest(requests: int, longest: int, skew: float, drafted: int) -> Plan:
        lengths = skewed_lengths(requests, longest, skew, shortest=drafted + 1)
        return plan(lengths, [drafted + 1] * requests, "decomposed", costs=costs)

    def draw(*setting) -> Figure:
        *batch, width = setting
        best = cheapest(*batch)
        return plots.packing_and_costs(plan(best.lengths, best.q_lens, "decomposed", costs=costs, width=width), best,
                                       width)

    go = button("cheapest width", "the width of the lowest predicted time",
                lambda: panel.set({"width, keys": cheapest(*panel.values[:-1]).width}))
    panel = Panel([*controls, go], draw,
                  task="Make all requests equally long: is cutting worth anything? Then one long one among many "
                  "short ones.",
                  presets={"all alike": {"skew": 0.0}, "one long, many short": {"skew": 0.95, "requests": 16}})
    return panel
