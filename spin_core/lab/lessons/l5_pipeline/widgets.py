"""Two stages under your hands, and the replay of a run."""

from __future__ import annotations

from ipywidgets import Button
from matplotlib.figure import Figure

from spin_core.engine import Engine
from spin_core.lab.lessons.l5_pipeline import plots
from spin_core.lab.lessons.panel import Panel, slider
from spin_core.lab.simulate.micro_batches import split_time
from spin_core.lab.simulate.timeline import last_run, replay as schedule_of
from spin_core.pipeline.reference import simulate

ROUNDS = 3


def overlap(draft: float = 20.0, verify: float = 40.0, fixed: float = 0.3, count: int = 2) -> Panel:
    """Sliders for both stages' milliseconds, the share of a pass that does not shrink with the batch, and the count."""
    d = slider("drafting, ms", draft, 1, 100, "of the whole batch")
    v = slider("verifying, ms", verify, 1, 100, "of the whole batch")
    f = slider("fixed share of a pass", fixed, 0, 1, "what does not shrink when the batch is cut", 0.05)
    m = slider("micro-batches", count, 1, 9, "parts of the batch")

    def draw() -> Figure:
        def schedule(groups: int, beside: bool):
            times = [split_time(t.value / 1e3, f.value, [1 / groups] * groups) for t in (d, v)]
            return simulate(*times, ROUNDS, overlap=beside)

        return plots.gantt({"taking turns": schedule(1, False),
                            f"pipeline, {m.value} micro-batches": schedule(m.value, True)},
                           title=f"{ROUNDS} rounds")

    return Panel([d, v, f, m], draw, kind="modelled",
                 task="From which fixed share on is the pipeline slower than taking turns? Which stage "
                 "should be made faster, and when does that stop helping?", presets={
                     "nothing fixed": {f.description: 0.0, m.description: 4}, "all fixed": {f.description: 1.0},
                     "equal stages": {d.description: 40.0, v.description: 40.0}})


def replay(engine: Engine) -> Panel:
    """The schedule of the last run of ``engine``, through a window that can be moved. The button looks for a newer run.

    Raises ValueError for an engine that has verified nothing yet.
    """
    again = Button(description="replay my last run", tooltip="draw what this engine served last")
    width = slider("window, ms", 400.0, 20, 4000, "how much of the run is drawn", 20)
    where = slider("where in the run", 0.5, 0, 1, "0: its start, 1: its end", 0.01)
    read = {"schedule": schedule_of(last_run(engine.trace.events))}

    def draw() -> Figure:
        whole = read["schedule"]
        length = min(width.value / 1e3, whole.seconds)
        begin = whole.start + where.value * (whole.seconds - length)
        window = whole.between(begin, begin + length)
        return plots.gantt({f"{begin - whole.start:.2f} s after the first draft": window}, title="A run of this engine")

    panel = Panel([again, where, width], draw, kind="measured", hold=False,
                  task="Find a bubble of drafting: what does the drafter wait for?")

    def reread(_button) -> None:
        read["schedule"] = schedule_of(last_run(engine.trace.events))
        panel.refresh()

    again.on_click(reread)
    return panel
