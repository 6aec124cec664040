"""A dashboard of the simulator: choose a setting, see who works when and what comes of it."""

from __future__ import annotations

from ipywidgets import Dropdown, IntSlider
from matplotlib.figure import Figure

from spin_core.pipeline.schedule import VERIFY
from spin_core.plots.pipeline import gantt
from spin_core.simulate import paper
from spin_core.simulate.acceptance import NAMES
from spin_core.simulate.profiles import DRAFTERS, HARDWARE
from spin_core.widgets.panel import Panel

CARDS = [name for name in HARDWARE if name != "V100-16GB"]


def dashboard(requests: int = 100, data_set: str = "Alpaca", policy: str = "1.4B", batch: int = 32,
              micro_batches: int = 2) -> Panel:
    """Goodput, padding, and the first steps of a run of LLaMA-7B on modelled hardware."""
    controls = [Dropdown(options=NAMES, value=data_set, description="texts"),
                Dropdown(options=[*DRAFTERS, "spin", "none"], value=policy, description="drafting"),
                Dropdown(options=["padded", "decomposed"], value="decomposed", description="verifying"),
                Dropdown(options=CARDS, value=CARDS[0], description="card"),
                IntSlider(batch, 1, 64, description="batch", continuous_update=False),
                IntSlider(micro_batches, 1, 8, description="micro-batches", continuous_update=False)]
    return Panel(controls, lambda: picture(*(c.value for c in controls), requests=requests))


def picture(data_set: str, policy: str, strategy: str, card: str, batch: int, micro_batches: int, *, requests: int = 100,
            shown: int = 6) -> Figure:
    """The ``shown`` rounds after the first prompts are read, with what the whole run comes to in the
    title."""
    groups = min(micro_batches, batch)
    run = paper.serve(data_set, "LLaMA-7B", policy, strategy=strategy, micro_batches=groups, batch=batch, card=card,
                      requests=requests)
    first = min(2 * groups, len(run.steps["start"]) - 1)
    last = min(first + shown * groups, len(run.steps["end"])) - 1
    window = run.schedule().between(float(run.steps["start"][first]), float(run.steps["end"][last]))
    return gantt({f"{policy} drafts, {strategy}, batch {batch}, {card}": window},
                 title=f"{run.goodput:,.0f} tokens/s (modelled), target {run.busy(VERIFY):.0%} busy, "
                       f"{run.padding:.0%} padding")
