"""The form of every widget: a row of controls above a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ipywidgets import HTML, HBox, Image, Layout, VBox
from matplotlib.figure import Figure

from spin_core.lab.lessons import look


class Panel(VBox):
    """A row of controls above a picture that ``draw`` makes anew whenever one of them changes."""

    def __init__(self, controls: Sequence, draw: Callable[[], Figure]) -> None:
        self.draw = draw
        self.picture = Image(format="png", layout=Layout(width="100%", max_width="960px"))
        row = Layout(flex_flow="row wrap", align_items="center")
        super().__init__([HBox(controls, layout=row), self.picture])
        for control in controls:
            if "value" in control.traits() and not isinstance(control, HTML):
                control.observe(self.refresh, "value")
        self.refresh()

    def refresh(self, _change=None) -> None:
        self.picture.value = look.png(self.draw())

    def __repr__(self) -> str:      # what a viewer without widgets shows
        return "[a widget: run this notebook to use it]"
