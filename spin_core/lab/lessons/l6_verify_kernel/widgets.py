"""The verify lesson's widget: how the bias of a wrong rule grows with the distance of the drafter from the target."""

from matplotlib.figure import Figure

from spin_core.lab.lessons.l6_verify_kernel import plots as verify_kernel
from spin_core.lab.lessons.l6_verify_kernel.rules import BIASED, LOSSLESS, P, Q, measure
from spin_core.lab.lessons.panel import Panel, slider


def bias() -> Panel:
    """Slide the drafter's distribution from the target's own (0) to one that proposes other tokens (1)."""
    name = "drafter's distance from p"

    def draw(distance: float) -> Figure:
        q = (1 - distance) * P + distance * Q
        return verify_kernel.bias({name: measure(rule, P, q) for name, rule in {**LOSSLESS, **BIASED}.items()})

    return Panel([slider(name, 1.0, 0, 1, "0: q is p; 1: the q of the figure above", 0.05)], draw,
                 kind="by exact enumeration", presets={"the target itself": {name: 0.0}, "far away": {name: 1.0}},
                 task="At which distance is a biased rule hardest to find by looking at text?")
