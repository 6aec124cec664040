"""The selection lesson's widget: a workload, a schedule, and what comes of it, replayed live."""

from __future__ import annotations

from ipywidgets import Checkbox, FloatSlider, IntSlider
from matplotlib.figure import Figure

from spin_core.lab.lessons.l3_selection import measure as lesson
from spin_core.lab.lessons.l3_selection import plots
from spin_core.lab.lessons.panel import Panel

GAMMAS = {"reads": 4, "copies": 4}


def story(requests: int, shift: bool, explore: int, first: int, prior: float, capacity: int) -> tuple[Figure, dict]:
    """spin, spin-full and every fixed drafter on a made-up workload, against oracle-request; and the drawn curves by
    policy: tokens written, tokens per second."""
    recording = lesson.shifting(requests, shift)
    room = dict.fromkeys(recording.arms, capacity)
    _, oracle = lesson.ceiling(recording, GAMMAS, capacities=room)
    runs = {name: lesson.play(recording, name, GAMMAS, capacities=room, **options) for name, options in {
        "spin": dict(explore=explore, first=first, prior=prior), "spin-full": {},
        **{f"fixed:{a}": {} for a in recording.arms}}.items()}
    windows = {name: lesson.window(run) for name, run in {"oracle-request": oracle, **runs}.items()}
    half = recording.starts[requests // 2] if shift else None
    share = runs["spin"].goodput / oracle.goodput
    lost = {n: lesson.seconds_lost(r, oracle) for n, r in runs.items()}
    rates = {n: w[:2] for n, w in windows.items()}
    return plots.live(rates, lost, windows["spin"][2], runs["spin"].arms, half,
                      title=f"tokens/s: spin has {share:.0%} of oracle"), rates


def replayed(requests: int = 48) -> Panel:
    """Sliders for exploration, epochs, prior, capacity and requests, and a workload that may shift in the middle."""
    def slider(kind, value, low, high, name, **more):
        return kind(value, min=low, max=high, description=name, continuous_update=False, **more)

    shift = Checkbox(False, description="shift in the middle")
    count = slider(IntSlider, requests, 16, 96, "requests", step=16)
    explore = slider(IntSlider, 1, 0, 8, "explore")
    first = slider(IntSlider, 8, 1, 64, "first epoch")
    prior = slider(FloatSlider, 16.0, 0, 64, "prior")
    capacity = slider(IntSlider, 8, 0, 8, "places")
    return Panel([count, shift, explore, first, prior, capacity],
                 lambda: story(count.value, shift.value, explore.value, first.value, prior.value, capacity.value)[0])
