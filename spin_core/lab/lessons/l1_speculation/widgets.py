"""The first lesson's widgets: steps one by one, the theory, acceptance by workload and drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from ipywidgets import Button, FloatSlider, IntSlider
from matplotlib.figure import Figure

from spin_core.lab.lessons.l1_speculation import plots
from spin_core.lab.lessons.l1_speculation.steps import Step
from spin_core.lab.lessons.panel import Panel, menu


def stepper(steps: Sequence[Step]) -> Panel:
    """Go through the steps of a request, and at each through the places of its draft.

    ``steps`` with distributions, as :func:`spin_core.lab.lessons.l1_speculation.steps.read_steps` makes them.
    Raises ValueError where there is nothing to show.
    """
    if not steps or not all(s.places for s in steps):
        raise ValueError("stepper: needs at least one step, with distributions recorded (Engine(record_probs=True))")
    back = Button(description="◀ back", tooltip="the step before")
    forth = Button(description="next ▶", tooltip="the next step")
    number = IntSlider(1, 1, len(steps), description="step", tooltip="a verification", continuous_update=False)
    place = IntSlider(1, 1, 1, description="place", tooltip="of the draft; the last one is the bonus token's")

    def draw() -> Figure:
        shown = steps[number.value - 1]
        return plots.step(shown, place.value - 1, title=f"Step {number.value} of {len(steps)}")

    def arrive(_change=None) -> None:
        """At a new step, look at the place that ended it first: a rejection, or the bonus token."""
        shown = steps[number.value - 1]
        with panel.hold_trait_notifications():
            place.unobserve(panel.refresh, "value")
            place.max = len(shown.places)
            place.value = min(shown.accepted + 1, place.max)
            place.observe(panel.refresh, "value")
        back.disabled, forth.disabled = number.value == 1, number.value == len(steps)

    def move(by: int) -> None:
        number.value = min(max(number.value + by, 1), len(steps))

    panel = Panel([back, forth, number, place], draw, task="Find a rejected token of which p is nearly q: where did "
                  "its point fall? Find a draft that was accepted whole.")
    number.unobserve(panel.refresh, "value")
    number.observe(arrive, "value")         # first the place, then one picture for both
    number.observe(panel.refresh, "value")
    back.on_click(lambda _: move(-1))
    forth.on_click(lambda _: move(+1))
    arrive()
    panel.refresh()
    return panel


def theory(alpha: float = 0.8, cost: float = 0.05) -> Panel:
    """Sliders for alpha and c; expected tokens and speed-up by gamma."""
    a = FloatSlider(alpha, min=0, max=0.99, step=0.01, description="α, acceptance rate", tooltip="of a tested token")
    c = FloatSlider(cost, min=0, max=0.5, step=0.01, description="c, target passes",
                    tooltip="what drafting a token costs")
    return Panel([a, c], lambda: plots.theory(a.value, c.value),
                 task="Drag α down: when does speculation stop paying? Does that depend on c?", presets={
                     "good and cheap": {a.description: 0.9, c.description: 0.05},
                     "good and expensive": {a.description: 0.8, c.description: 0.3},
                     "bad and expensive": {a.description: 0.25, c.description: 0.3}})


def acceptance(counts: Mapping[str, Mapping[str, plots.Counts]]) -> Panel:
    """Acceptance by place, for the drafters and the workload chosen.

    ``counts[workload][drafter]`` are (tested, accepted) by place, all of one length.
    """
    everything = "all"
    drafters = list(next(iter(counts.values())))
    workload = menu("workload", [everything, *counts], "whose prompts to count")
    drafter = menu("drafter", [everything, *drafters], "one drafter, or all beside each other")

    def draw() -> Figure:
        workloads = list(counts) if workload.value == everything else [workload.value]
        chosen = drafters if drafter.value == everything else [drafter.value]
        added = {d: tuple(np.sum([counts[w][d] for w in workloads], axis=0)) for d in chosen}
        title = f"Acceptance by place: {workload.value if workload.value != everything else 'all workloads'}"
        return plots.acceptance_by_position(added, title=title)

    return Panel([workload, drafter], draw, task="Which drafter gets better along a draft? On which texts does prompt "
                 "lookup lose its lead?")
