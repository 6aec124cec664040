"""The selection lesson's widget: a made-up workload, a schedule, and what comes of it, replayed live."""

from ipywidgets import Checkbox
from matplotlib.figure import Figure

from spin_core.lab.lessons.l3_selection import measure as lesson
from spin_core.lab.lessons.l3_selection import plots
from spin_core.lab.lessons.panel import Panel, slider

GAMMAS = {"reads": 4, "copies": 4}


def story(requests: int, shift: bool, explore: int, first: int, prior: float, capacity: int) -> tuple[Figure, dict]:
    """spin, spin-full and every fixed drafter on a made-up workload, against oracle-request; and the drawn curves by
    policy: tokens written, tokens per second. The picture names the setting: two settings may give the same curves."""
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
    setting = (f"{requests} requests{', the second half code' * shift}; explore {explore} steps, first epoch {first}, "
               f"prior {prior:g}; {capacity} places")
    return plots.live(rates, lost, windows["spin"][2], runs["spin"].arms, half,
                      title=f"spin: {share:.0%} of the oracle", setting=setting), rates


def replayed(requests: int = 48) -> Panel:
    """Sliders for exploration, epochs, prior, places and requests, and a workload that may shift in the middle."""
    controls = [slider("requests", requests, 16, 96, "served in all, eight at a time", 16),
                Checkbox(True, description="shift in the middle", tooltip="first all prose, then all code"),
                slider("explore, steps", 1, 0, 8, "exploring steps at the beginning of every epoch"),
                slider("first epoch, steps", 8, 1, 64,
                       "exploiting steps of the first epoch; each further one has twice as many"),
                slider("prior, steps", 16.0, 0, 64,
                       "how many steps the estimate of all requests weighs in each request's own", 8),
                slider("places", 8, 0, 8, "how many requests of eight a drafter can serve")]
    return Panel(controls, lambda *setting: story(*setting)[0], task="Set <i>explore</i> to 0: does spin notice the "
                 "shift? Set <i>prior</i> to 0: what does a new request cost then? Take places away: which policy "
                 "suffers?",
                 presets={"no exploration": {"explore, steps": 0}, "no prior": {"prior, steps": 0.0},
                          "two places": {"places": 2}, "as at first": {c.description: c.value for c in controls}})
