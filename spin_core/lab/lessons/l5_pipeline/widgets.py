"""Two stages under your hands, and the replay of a run."""

from matplotlib.figure import Figure

from spin_core.engine import Engine
from spin_core.lab.lessons.l5_pipeline import plots
from spin_core.lab.lessons.panel import Panel, button, slider
from spin_core.lab.schedule import Schedule, simulate
from spin_core.lab.simulate.micro_batches import split_time
from spin_core.lab.simulate.timeline import last_run, replay as schedule_of

ROUNDS = 3


def overlap(draft: float = 20.0, verify: float = 40.0, fixed: float = 0.3, count: int = 2) -> Panel:
    """Sliders for both stages' milliseconds, the share of a pass that does not shrink with the batch, and the count."""
    controls = [slider("drafting, ms", draft, 1, 100, "of the whole batch"),
                slider("verifying, ms", verify, 1, 100, "of the whole batch"),
                slider("fixed share of a pass", fixed, 0, 1, "what does not shrink when the batch is cut", 0.05),
                slider("micro-batches", count, 1, 9, "parts of the batch")]

    def draw(drafting: float, verifying: float, fixed: float, count: int) -> Figure:
        def schedule(groups: int, beside: bool) -> Schedule:
            times = [split_time(ms / 1e3, fixed, [1 / groups] * groups) for ms in (drafting, verifying)]
            return simulate(*times, ROUNDS, overlap=beside)

        return plots.gantt({"taking turns": schedule(1, False),
                            f"pipeline, {count} micro-batches": schedule(count, True)}, title=f"{ROUNDS} rounds")

    return Panel(controls, draw, kind="modelled",
                 task="From which fixed share on is the pipeline slower than taking turns? Which stage "
                 "should be made faster, and when does that stop helping?", presets={
                     "nothing fixed": {"fixed share of a pass": 0.0, "micro-batches": 4},
                     "all fixed": {"fixed share of a pass": 1.0},
                     "equal stages": {"drafting, ms": 40.0, "verifying, ms": 40.0}})


def replay(engine: Engine) -> Panel:
    """The schedule of the last run of ``engine``, through a window that can be moved. The button looks for a newer run.

    Raises ValueError for an engine that has verified nothing yet.
    """
    run = schedule_of(last_run(engine.trace.events))

    def reread() -> None:
        nonlocal run
        run = schedule_of(last_run(engine.trace.events))
        panel.refresh()

    def draw(width: float, where: float) -> Figure:
        length = min(width / 1e3, run.seconds)
        begin = run.start + where * (run.seconds - length)
        window = run.between(begin, begin + length)
        return plots.gantt({f"{begin - run.start:.2f} s after the first draft": window}, title="A run of this engine")

    panel = Panel([button("replay my last run", "draw what this engine served last", reread),
                   slider("window, ms", 400.0, 20, 4000, "how much of the run is drawn", 20),
                   slider("where in the run", 0.5, 0, 1, "0: its start, 1: its end", 0.01)], draw, kind="measured",
                  hold=False, task="Find a bubble of drafting: what does the drafter wait for?")
    return panel
