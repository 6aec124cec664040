"""The first lesson's widgets: steps one by one, the theory, acceptance by workload and drafter."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from spin_core.lab.lessons.l1_speculation import plots
from spin_core.lab.lessons.l1_speculation.steps import Step
from spin_core.lab.lessons.panel import Panel, button, menu, slider


def stepper(steps: Sequence[Step]) -> Panel:
    """Go through the steps of a request, and at each through the places of its draft.

    ``steps`` with distributions, as :func:`spin_core.lab.lessons.l1_speculation.steps.read_steps` makes them.
    Raises ValueError where there is nothing to show.
    """
    if not steps or not all(s.places for s in steps):
        raise ValueError("stepper: needs at least one step, with distributions recorded (Engine(record_probs=True))")
    number = slider("step", 1, 1, len(steps), "a verification")
    place = slider("place", 1, 1, 1, "of the draft; the last one is the bonus token's", live=True)
    back = button("◀ back", "the step before", lambda: panel.set({"step": number.value - 1}))
    forth = button("next ▶", "the next step", lambda: panel.set({"step": number.value + 1}))

    def arrive() -> None:
        """At a new step, look at the place that ended it first: a rejection, or the bonus token."""
        shown = steps[number.value - 1]
        place.max = len(shown.places)
        place.value = min(shown.accepted + 1, place.max)
        back.disabled, forth.disabled = number.value == 1, number.value == len(steps)

    def draw(step: int, at: int) -> Figure:
        return plots.step(steps[step - 1], at - 1, title=f"Step {step} of {len(steps)}")

    arrive()
    panel = Panel([back, forth, number, place], draw, before={"step": arrive}, task="Find a rejected token of which p "
                  "is nearly q: where did its point fall? Find a draft that was accepted whole.")
    return panel


def theory(alpha: float = 0.8, cost: float = 0.05) -> Panel:
    """Sliders for alpha and c; expected tokens and speed-up by gamma."""
    a, c = "α, acceptance rate", "c, target passes"
    return Panel([slider(a, alpha, 0, 0.99, "of a tested token", 0.01, live=True),
                  slider(c, cost, 0, 0.5, "what drafting a token costs", 0.01, live=True)], plots.theory,
                 task="Drag α down: when does speculation stop paying? Does that depend on c?", presets={
                     "good and cheap": {a: 0.9, c: 0.05}, "good and expensive": {a: 0.8, c: 0.3},
                     "bad and expensive": {a: 0.25, c: 0.3}})


def acceptance(counts: Mapping[str, Mapping[str, plots.Counts]]) -> Panel:
    """Acceptance by place, for the drafters and the workload chosen.

    ``counts[workload][drafter]`` are (tested, accepted) by place, all of one length.
    """
    everything = "all"
    controls = [menu("workload", [everything, *counts], "whose prompts to count"),
                menu("drafter", [everything, *next(iter(counts.values()))], "one drafter, or all beside each other")]

    def draw(workload: str, drafter: str) -> Figure:
        workloads = list(counts) if workload == everything else [workload]
        chosen = next(iter(counts.values())) if drafter == everything else [drafter]
        added = {d: tuple(np.sum([counts[w][d] for w in workloads], axis=0)) for d in chosen}
        title = f"Acceptance by place: {'all workloads' if workload == everything else workload}"
        return plots.acceptance_by_position(added, title=title)

    return Panel(controls, draw, task="Which drafter gets better along a draft? On which texts does prompt lookup "
                 "lose its lead?")
