"""Sliders for SPIRe's throughput model: when is which drafting worth it?"""

from __future__ import annotations

from ipywidgets import Dropdown, IntSlider, SelectionSlider
from matplotlib.figure import Figure

from spin_core.lessons import long_context as lesson
from spin_core.plots.long_context import roofline
from spin_core.simulate import spire
from spin_core.widgets.panel import Panel

WINDOWS = {"an eighth of the context": None, "64 tokens": 64, "1024 tokens": 1024}


def model(batch: int = 64, context: int = 512) -> Panel:
    """Batch, context, gamma, window rule and hardware intensity -> passes and throughput multipliers."""
    controls = [SelectionSlider(options=[2 ** n for n in range(11)], value=batch, description="batch"),
                SelectionSlider(options=lesson.CONTEXTS, value=context, description="context"),
                IntSlider(spire.DRAFTED, 1, 10, description="gamma", continuous_update=False),
                Dropdown(options=list(WINDOWS), description="window"),
                SelectionSlider(options=[25, 50, 100, 200, 300, 600, 1200], value=int(spire.HOI),
                                description="FLOP per byte")]
    return Panel(controls, lambda: picture(*(c.value for c in controls)))


def picture(batch: int, context: int, drafted: int, window: str, hoi: float) -> Figure:
    """The passes at that setting, and what they come to."""
    setting = dict(drafted=drafted, window=WINDOWS[window], hoi=hoi)
    return roofline(lesson.roofline(batch, context, **setting), lesson.multipliers(batch, context, **setting),
                    f"modelled: batch {batch}, context {context:,}, gamma {drafted}, a sparse draft sees {window}, "
                    f"{hoi:g} FLOP per byte")
