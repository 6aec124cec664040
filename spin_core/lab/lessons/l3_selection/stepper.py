"""The selection stepper: what a selector believed at every step, what it chose, and what that earned."""

from collections.abc import Mapping, Sequence

import numpy as np
from ipywidgets import VBox
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy import ndarray

from spin_core.lab.lessons import look, pages
from spin_core.lab.lessons.panel import Work
from spin_core.lab.simulate.oracle import Prices
from spin_core.lab.simulate.recording import Recording
from spin_core.lab.simulate.replay import replay
from spin_core.lab.explain import Explanation, watch
from spin_core.select import NONE, make
from spin_core.select.matching import match

READY, FOUND = 1, 2             # bits of a cell's flags
FIELDS = ("id", "text", "current", "chosen", "why", "drafted", "accepted", "earned", "seconds", "star", "estimate",
          "count", "flags", "would")
"""Of a row, a request in a step: four lists by drafter at the end; ``would`` and ``star`` need hindsight."""
LEGEND = ("In a cell: the policy's estimate in tokens per second (–: no opinion), what the request knows of the "
          "drafter, and what the drafter would really have brought at this place of the text. Frame: the choice. ★: "
          "the choice of an oracle that knows this, under the same places. Hatched: cannot be chosen now.")
TASKS = ("Press “first exploit”, then play: which requests settle, and which keep switching? Why may they?",
         "Press “a mistake”. Was it bad luck, or a wrong estimate? What does greedy believe at the same step?")


def replayed(recording: Recording, gammas: Mapping[str, int], policies: Sequence[str], *, batch: int = 6,
             steps: int = 40, places: int = 2) -> dict:
    """The page's numbers: the first ``steps`` of every policy on the same requests; model drafters have ``places``."""
    models = [arm for arm in recording.arms if arm not in recording.lookups]
    runs = {}
    for name in policies:
        own = {"cost": recording.passes["target"]} if name == "spin-full" else {"gamma": gammas}
        selector = make(name, recording.arms, seed=0, **own)
        seen = watch(selector)
        replay(recording, selector, batch=batch, capacities=dict.fromkeys(models, places))
        hindsight = _Hindsight(recording, gammas, batch)
        runs[name] = seen[:steps], [hindsight.of(step) for step in seen[:steps]]
    about = (f"{batch} requests at a time of the recording; {', '.join(models)} have {places} places each. "
             "← and → go through the steps, space plays.")
    texts = {request: workload for request, workload in enumerate(recording.workloads)}
    return _data(runs, texts, about, TASKS)


def served(steps: Sequence[Explanation], name: str, texts: Mapping[int, str] | None = None) -> dict:
    """The same of what an engine has served, from ``steps = watch(selector)``: without hindsight."""
    if not steps:
        raise ValueError("the selector has chosen nothing yet: serve requests after watch(selector)")
    return _data({name: (steps, [None] * len(steps))}, texts or {}, "served by the engine, just now", TASKS[:1])


def numbers(data: dict, at: int = 0) -> dict:
    """What the page is made of, which opens at step ``at``; its rows do without the names of their fields."""
    return data | {"at": at, "fields": FIELDS, "policies": {policy: one | {"frames": [
        frame | {"rows": [list(row.values()) for row in frame["rows"]]} for frame in one["frames"]]}
        for policy, one in data["policies"].items()}}


def show(data: dict) -> None:
    """Display the page at its most varied step, and before it a picture of that step for where scripts do not run."""
    name, one = next(iter(data["policies"].items()))
    at = max(range(len(one["frames"])), key=lambda i: len({row["chosen"] for row in one["frames"][i]["rows"]}))
    pages.show_page("selection", numbers(data, at), look.png(picture(data, name, at), whole=True), one["title"])


def live(policy: str = "spin", *, requests: int = 6, tokens: int = 24) -> VBox:
    """A button: the embedded models serve ``requests`` prompts of the mix, four at a time, and the steps of that run
    appear below."""
    def serve(work: Work) -> pages.HTML:
        from spin_core import zoo
        from spin_core.engine import Engine
        from spin_core.request import SamplingParams
        from spin_core.workloads import load_workload

        work.say("loading the models")
        engine = Engine(zoo.load("smollm2"), selector=policy, max_batch=4)
        steps, texts = watch(engine.selection.selector), {}
        for prompt in load_workload("mix", "test", limit=requests):
            texts[engine.submit(prompt.messages, SamplingParams(max_new_tokens=tokens)).id] = prompt.workload
        while engine.running or engine.queue:
            engine.step()
            if work.say(f"step {len(steps)}, {len(engine.queue)} requests wait"):
                break
        engine.close()
        return pages.page("selection", numbers(served(steps, policy, texts)))

    return pages.live(serve, "serve now and watch", f"{requests} prompts, {tokens} tokens each, on this machine")


def _data(runs: Mapping[str, tuple[Sequence[Explanation], Sequence]], texts: Mapping[int, str], about: str,
          tasks: Sequence[str]) -> dict:
    policies, first = {}, next(iter(runs.values()))[0][0]
    for name, (steps, hindsight) in runs.items():
        tokens = clock = 0
        frames = []
        for step, known in zip(steps, hindsight):
            tokens, clock = tokens + int(np.nansum(step.earned)), clock + float(np.nansum(step.seconds))
            frames.append(_frame(step, known, texts) | {"tokens": tokens, "clock": round(clock, 4)})
        right = [row["would"][row["star"]] <= row["earned"] for f in frames for row in f["rows"]
                 if row["star"] is not None]
        told = f"; in {np.mean(right):.0%} of its choices no other drafter would have brought more" if right else ""
        policies[name] = {"frames": frames,
                          "title": f"{name}: {tokens / clock:.0f} tokens/s over {len(frames)} steps{told}"}
    return {"arms": list(first.arms), "policies": policies, "about": about, "legend": LEGEND, "tasks": list(tasks),
            "unit": {name: steps[0].unit for name, (steps, _) in runs.items()}}


def _frame(step: Explanation, known: tuple[ndarray, ndarray] | None, texts: Mapping[int, str]) -> dict:
    def plain(value, digits=3):
        return None if not np.isfinite(value) else float(f"{value:.{digits}g}")

    why = list(step.why)
    rows = [dict(zip(FIELDS, (
        int(request), texts.get(int(request), ""), int(step.current[b]),
        int(step.chosen[b]) if step.gammas[b] else step.arms.index(NONE), why[b], *(
            int(np.nan_to_num(v[b])) for v in (step.drafted, step.accepted, step.earned)),
        plain(np.nan_to_num(step.seconds[b])),
        int(known[1][b]) if known else None, [plain(v) for v in step.estimate[b]], step.count[b].astype(int).tolist(),
        (READY * step.ready[b] + FOUND * step.found[b]).astype(int).tolist(), known and known[0][b].tolist())))
            for b, request in enumerate(step.requests)]
    phase = None if step.slot is None else "explore" if step.exploring else "exploit"
    return {"phase": phase, "slot": step.slot and [int(n) for n in step.slot], "rows": rows,
            "places": np.asarray(step.places).astype(int).tolist()}


class _Hindsight:
    """What every drafter would have brought at the places where the requests are, one step after another."""

    def __init__(self, recording: Recording, gammas: Mapping[str, int], batch: int) -> None:
        self.recording, self.done = recording, np.zeros(len(recording), int)        # tokens written so far
        self.gammas = np.array([*(gammas[arm] for arm in recording.arms), 0])
        self.lookup = np.array([*(arm in recording.lookups for arm in recording.arms), False])
        self.prices = Prices.of(recording, batch, 2, np.full(len(recording.arms) + 1, batch / 2))

    def of(self, step: Explanation) -> tuple[ndarray, ndarray]:
        """Tokens ``[B, A]`` that each arm would have brought, and the oracle's arm of each request ``[B]``."""
        requests, drafted = np.array(step.requests), np.zeros((len(step.requests), len(step.arms)), int)
        at = self.recording.starts[requests] + self.done[requests]
        left = self.recording.starts[requests + 1] - at - 1
        drafted[:, :-1] = np.minimum(self.recording.proposed[:, at].T, np.minimum(self.gammas[:-1], left[:, None]))
        tokens = np.ones_like(drafted)
        tokens[:, :-1] += np.minimum(drafted[:, :-1], self.recording.accepted[:, at].T)
        self.done[requests] += step.earned.astype(int)
        passes = np.where(self.lookup, drafted > 0, drafted)
        rates = tokens / (self.prices.step + drafted * self.prices.row + passes * self.prices.draft)
        return tokens, match(np.where(step.found, rates, -1.0), np.asarray(step.places), step.arms.index(NONE))


@look.styled
def picture(data: dict, policy: str, at: int) -> Figure:
    """One step as a picture: the grid of estimates, the choice framed, the oracle's choice marked."""
    frame, arms = data["policies"][policy]["frames"][at], data["arms"]
    figure = Figure(figsize=(look.WIDTH, 1.5 + 0.42 * len(frame["rows"])), layout="constrained")
    ax = figure.subplots()
    for b, row in enumerate(frame["rows"]):
        for a in range(len(arms)):
            colour = look.GREY if arms[a] == NONE else look.look(arms[a], a)[0]
            chosen = a == row["chosen"]
            ax.add_patch(Rectangle((a + .03, b + .05), .94, .9,
                                   facecolor=look.tint(colour, .3) if chosen else "#F4F4F4",
                                   edgecolor=colour if chosen else look.LIGHT, linewidth=2.4 if chosen else .8))
            said = "–" if row["estimate"][a] is None else f"{row['estimate'][a]:.3g}"
            ax.text(a + .5, b + .5, said + (f"   brings {row['would'][a]}" if row["would"] else ""), ha="center",
                    va="center", size=9, color=look.INK if row["flags"][a] & FOUND else look.GREY)
            if a == row["star"]:
                ax.text(a + .93, b + .22, "★", ha="right", va="center", size=10, color=look.ORANGE)
        ax.text(len(arms) + .1, b + .5, f"{row['earned']} token{'s' * (row['earned'] != 1)}", va="center", size=9.5)
        ax.text(-.1, b + .5, f"#{row['id']} {row['text']}", va="center", ha="right", size=9.5)
    for a, arm in enumerate(arms):
        ax.text(a + .5, -.25, arm, ha="center", va="center", size=9.5, weight="bold")
    ax.set(xlim=(-1.3, len(arms) + .9), ylim=(len(frame["rows"]), -.6))
    ax.axis("off")
    figure.suptitle(f"{data['policies'][policy]['title']}\nstep {at + 1}, {frame['phase'] or 'no epochs'}: estimates "
                    "in tokens per second, the choice framed, ★ the oracle's", size=10, x=.01, ha="left")
    return figure
