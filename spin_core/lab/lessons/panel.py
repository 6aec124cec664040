"""The form of every widget: tasks and presets, a row of controls, a sign while it works, a picture."""

import threading
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from html import escape

from ipywidgets import (
    HTML, Button, DOMWidget, Dropdown, FloatSlider, HBox, Image, IntSlider, Layout, SelectionSlider,
    ValueWidget, VBox)
from matplotlib.figure import Figure

from spin_core.lab.lessons import look

ROW = dict(flex_flow="row wrap", align_items="center")
WORKING = "<b style='color:#B36200'>⏳ working …</b>"


class Panel(VBox):
    """A row of controls above the picture that ``draw`` makes of their values, anew whenever one of them changes.

    ``task``: what the reader may try. ``presets``: by a button's name the values of controls, by their descriptions.
    ``before``: by a control's description what else changes with it, called before the picture is drawn.
    ``kind``: of the numbers, such as "modelled". Axes only ever grow, so that a moved slider moves the curve and not
    the scale; ``hold=False`` where the picture is a drawing without scales, or a control chooses what an axis shows.
    While the picture is being made a sign says so; a ValueError of ``draw`` is shown as a sentence, and the last
    picture stays. A viewer without widgets shows the picture alone.
    """

    def __init__(self, controls: Sequence, draw: Callable[..., Figure], *, task: str = "", kind: str = "",
                 hold: bool = True, presets: Mapping[str, Mapping[str, object]] | None = None,
                 before: Mapping[str, Callable[[], None]] | None = None) -> None:
        self.draw, self.controls = draw, [c for c in controls if isinstance(c, ValueWidget) and not isinstance(c, HTML)]
        self.quiet, self.hold, self.limits = f"<small>{kind}</small>" if kind else "", hold, []
        self.before, self.changing = before or {}, False
        self.picture = Image(format="png", layout=Layout(width="100%", max_width="960px"))
        self.sign = HTML("", layout=Layout(min_height="24px"))
        for control in controls:
            whole_label(control)
        above = [said(task)] if task else []
        if presets:
            above.append(HBox([HTML("try"), *(
                button(name, "set " + ", ".join(f"{control} to {value}" for control, value in values.items()),
                       lambda values=values: self.set(values)) for name, values in presets.items())],
                layout=Layout(**ROW)))
        super().__init__([HBox(controls, layout=Layout(**ROW)), *above, self.sign, self.picture])
        for control in self.controls:
            control.observe(self.refresh, "value")
        self.refresh()

    @property
    def values(self) -> list:
        """What the controls are set to: the arguments of ``draw``."""
        return [control.value for control in self.controls]

    def set(self, values: Mapping[str, object]) -> None:
        """Set controls, by their descriptions, and draw once."""
        self.changing = True            # one picture for all
        for control in self.controls:
            if control.description in values:
                control.value = values[control.description]
                self.before.get(control.description, lambda: None)()
        self.changing = False
        self.refresh()

    def refresh(self, change=None) -> None:
        if self.changing:
            return
        if change and change.owner.description in self.before:
            return self.set({change.owner.description: change.new})
        self.sign.value = WORKING
        try:
            self.picture.value = look.png(self._steady(self.draw(*self.values)))
            self.sign.value = self.quiet
        except ValueError as error:
            self.sign.value = _complaint(str(error))

    def _steady(self, figure: Figure) -> Figure:
        """Widen the axes to what they showed before, unless the figure has other panels now."""
        if not self.hold:
            return figure
        now = [sorted(limits) for axes in figure.axes for limits in (axes.get_xlim(), axes.get_ylim())]
        if len(self.limits) == len(now):
            now = [(min(a, b), max(c, d)) for (a, c), (b, d) in zip(now, self.limits)]
        self.limits = now
        for axes, x, y in zip(figure.axes, now[::2], now[1::2]):
            axes.set(xlim=x[::-1] if axes.xaxis_inverted() else x, ylim=y[::-1] if axes.yaxis_inverted() else y)
        return figure

    def __repr__(self) -> str:      # what a viewer without widgets or pictures shows
        return "[a widget: run this notebook to use it]"

    def _repr_mimebundle_(self, **options) -> dict:
        return super()._repr_mimebundle_(**options) | {"image/png": b64encode(self.picture.value).decode()}


class Work(HBox):
    """A button behind which something takes seconds, one that stops it, and a sign. ``job(work)`` runs in a thread, so
    that other controls, above all ``stop``, stay alive. The sign says that it works as soon as the button is pressed;
    the job may call :meth:`say`."""

    def __init__(self, job: Callable[["Work"], None], label: str, tooltip: str) -> None:
        self.job, self.stopped, self.thread = job, False, None
        wide = dict(layout=Layout(width="auto"))
        self.start = Button(description=label, icon="play", tooltip=tooltip, **wide)
        self.stop = Button(description="stop", icon="stop", tooltip="after the running step", disabled=True, **wide)
        self.sign = HTML("")
        super().__init__([self.start, self.stop, self.sign], layout=Layout(**ROW))
        self.start.on_click(lambda _: self.begin())
        self.stop.on_click(lambda _: self.end())

    def begin(self) -> None:
        if self.busy:
            return
        self.stopped, self.start.disabled, self.stop.disabled = False, True, False
        self.sign.value = WORKING
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    @property
    def busy(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def end(self) -> None:
        self.stopped, self.stop.disabled = True, True
        self.sign.value = "stopping …"

    def say(self, what: str) -> bool:
        """Show what is being done; whether the job should stop."""
        self.sign.value = f"⏳ {escape(what)}" if not self.stopped and what not in ("done", "stopped") else escape(what)
        return self.stopped

    def _run(self) -> None:
        try:
            self.job(self)
        except Exception as error:      # a thread's error would be lost: show it where the reader looks
            self.sign.value = _complaint(f"{type(error).__name__}: {error}")
        self.start.disabled, self.stop.disabled = False, True


def button(name: str, tip: str, press: Callable[[], object]) -> Button:
    """A button as wide as its name."""
    made = Button(description=name, tooltip=tip, layout=Layout(width="auto"))
    made.on_click(lambda _: press())
    return made


def slider(name: str, value: float, low: float, high: float, tip: str, step: float = 1, *,
           live: bool = False) -> IntSlider | FloatSlider:
    """A slider of whole numbers if ``value`` is one. Its picture is made when it is let go; ``live``: all the while."""
    kind = IntSlider if isinstance(value, int) else FloatSlider
    return kind(value, min=low, max=high, step=step, description=name, tooltip=tip, continuous_update=live)


def menu(name: str, options: Sequence, tip: str, value: object = None) -> Dropdown:
    """A menu that opens at ``value``, by default at the first of the ``options``."""
    control = Dropdown(options=options, description=name, tooltip=tip)
    if value is not None:
        control.value = value
    return control


def choices(name: str, options: Sequence, tip: str, value: object) -> SelectionSlider:
    """A slider over ``options`` that are not equally far apart."""
    return SelectionSlider(options=options, value=value, description=name, tooltip=tip, continuous_update=False)


def _complaint(text: str) -> str:
    return f"<span style='color:#D55E00'>{escape(text)}</span>"


def whole_label(control: DOMWidget) -> DOMWidget:
    """Let a control show its whole label, however long."""
    control.layout.margin = "2px 18px 2px 2px"
    if "style" in control.traits() and hasattr(control.style, "description_width"):
        control.style.description_width = "initial"
    if "slider" in type(control).__name__.lower():
        control.layout.width = "330px"
    elif "description" in control.traits() and control.layout.width is None:
        control.layout.width = "auto"
    return control


def said(task: str) -> HTML:
    """A task for the reader."""
    return HTML(f"<div style='border-left:3px solid #0072B2;padding-left:8px'>{task}</div>")
