"""The live dashboard: a warm engine serves a stream of requests, and every control acts on it while it runs."""

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from html import escape

from ipywidgets import HTML, HBox, Layout, VBox
from matplotlib.figure import Figure

from spin_core.engine import Engine
from spin_core.lab.lessons import look
from spin_core.lab.lessons.l7_paper_figures import plots
from spin_core.lab.lessons.panel import ROW, Work, menu, said, slider, whole_label
from spin_core.lab.schedule import STAGES
from spin_core.lab.simulate.timeline import replay
from spin_core.request import SamplingParams
from spin_core.select.assigner import make_selector
from spin_core.workloads import NAMES as WORKLOADS, load_workload

POLICIES = ("spin", "spin-full", "greedy", "epsilon-greedy")
MOST = 8                # requests at once
WINDOW = 40             # steps that goodput, acceptance and shares are counted over
ROUNDS = 10             # steps in the picture of the stages
REDRAW = 0.4            # seconds between two pictures
KEPT = 5                # settings in the table
TASK = ("Start it, wait for ten seconds, then choose <i>fixed:none</i>: what does speculation gain here? Then one "
        "request at once. Does SPIN drop a drafter when you change the texts? Compare in the table below.")


class Server:
    """An engine that always has ``at_once`` requests. Its settings may be changed between two steps; what the selectors
    have learned stays: each policy is kept, and goes on where it was left."""

    def __init__(self, family, *, texts: str = "mix", policy: str = "spin", at_once: int = 4,
                 micro_batches: str | int = "auto", tokens: int = 32) -> None:
        self.engine = Engine(family, selector="spin", max_batch=MOST, max_len=1024, pipeline="auto")
        self.names = [*POLICIES, *(f"fixed:{name}" for name in [*family.drafters, "ngram"]), "fixed:none"]
        self.selectors = {"spin": self.engine.selection.selector}
        self.params = SamplingParams(max_new_tokens=tokens)
        self.settings = dict(texts=texts, policy=policy, at_once=at_once, micro_batches=micro_batches)
        self.requests: dict[int, tuple] = {}            # id -> request and the set its prompt is from
        self.history: deque[dict] = deque(maxlen=KEPT)
        self._prompts: dict[str, itertools.cycle] = {}
        self._begin()

    def change(self, **settings) -> None:
        """Serve with other settings from the next step on. Raises ValueError for a policy that there is not."""
        new = self.settings | settings
        if new == self.settings:
            return
        if new["policy"] not in self.names:
            raise ValueError(f"unknown policy {new['policy']!r}; known: {', '.join(self.names)}")
        if self.numbers()["tokens"]:
            self.history.appendleft(self.settings | self.numbers())
        self.settings = new
        self._begin()

    def _begin(self) -> None:
        """Put the settings into the running engine, and count anew."""
        policy, count = self.settings["policy"], self.settings["micro_batches"]
        if policy not in self.selectors:
            self.selectors[policy] = make_selector(policy, None, None, self.engine.family, self.engine.pool)
        self.engine.selection.selector = self.selectors[policy]
        self.engine.pipeline.fixed = None if count == "auto" else count
        self.since = len(self.engine.trace.events) + self.engine.trace.dropped

    def turn(self) -> None:
        """One step, after as many new prompts as there is room for."""
        for number in [n for n, (request, _) in self.requests.items() if request.finished]:
            del self.requests[number]
        texts = self.settings["texts"]
        while len(self.requests) < self.settings["at_once"]:
            prompts = self._prompts.setdefault(texts, itertools.cycle(load_workload(texts, "test")))
            prompt = next(prompts)
            request = self.engine.submit(prompt.messages, self.params)
            self.requests[request.id] = request, prompt.workload
        self.engine.step()

    def steps(self, most: int = WINDOW) -> list:
        """The events of the latest steps since the last change."""
        events = self.engine.trace.events[max(0, self.since - self.engine.trace.dropped):]
        events = [e for e in events if e.kind == "step"]
        late = sorted({e.step for e in events})[-most:]
        return [e for e in events if late and e.step >= late[0]]

    def numbers(self) -> dict:
        """Goodput in tokens per second, acceptance and shares of verifications by drafter, over the latest steps."""
        steps = self.steps()
        tokens = sum(len(e.emitted) for e in steps)
        began = min((e.time - e.step_seconds for e in steps), default=0.0)
        seconds = max((e.time for e in steps), default=0.0) - began
        drafted = sum(len(e.drafted) for e in steps if e.emitted)
        served = Counter(e.drafter or "none" for e in steps if e.emitted)
        return {"tokens": tokens, "seconds": seconds, "goodput": tokens / seconds if seconds else 0.0,
                "acceptance": sum(e.accepted for e in steps if e.emitted) / drafted if drafted else None,
                "served": dict(served.most_common()), "steps": len({e.step for e in steps})}

    def close(self) -> None:
        self.engine.close()


def picture(server: Server) -> Figure:
    """The same as the widget shows, as a figure: when the stages work, the drafters' shares, and the numbers."""
    numbers = server.numbers()
    top = next(iter(numbers["served"]))
    share = numbers["served"][top] / sum(numbers["served"].values())
    return plots.dashboard(replay(server.steps(ROUNDS)), numbers["served"],
                           title=f"{_goodput(numbers)} with {server.settings['at_once']} requests at once (measured "
                                 f"here); {'no drafter' if top == 'none' else top} in {share:.0%} of the verifications")


def _goodput(numbers: dict) -> str:
    return f"{numbers['goodput']:,.1f} tokens/s"


class Dashboard(VBox):
    """Controls above the running server. Nothing is served before its button is pressed; a viewer without widgets shows
    the numbers that it opens with."""

    def __init__(self, server: Server) -> None:
        now = server.settings
        self.server, self.view, self.lock = server, HTML(render(server)), threading.Lock()
        self.wanted: dict[str, object] = {}                 # settings that hold from the next step on
        self.controls = {
            "texts": menu("texts", WORKLOADS, "which prompts come next", now["texts"]),
            "policy": menu("drafting", server.names, "the policy that chooses drafters; fixed: one drafter for all",
                           now["policy"]),
            "at_once": slider("requests at once", now["at_once"], 1, MOST, "how many requests are served together"),
            "micro_batches": menu("micro-batches", ["auto", 1, 2, 3], "auto: the heuristic of lesson 5",
                                  now["micro_batches"])}
        for key, control in self.controls.items():
            whole_label(control).observe(lambda event, key=key: self.change(key, event["new"]), "value")
        self.work = Work(self.serve, "start", "serve requests until stopped")
        self.work.say("stopped")
        super().__init__([said(TASK), self.work, HBox([*self.controls.values()], layout=Layout(**ROW)), self.view])

    def change(self, key: str, value: object) -> None:
        """Say at once that a setting changes; the server gets it between two steps."""
        with self.lock:
            self.wanted[key] = value
        self.work.sign.value = f"⏳ setting {self.controls[key].description} to {escape(str(value))} …"
        if not self.work.busy:
            self.apply()
            self.view.value = render(self.server)
            self.work.sign.value = "stopped; the setting holds from the next start"

    def apply(self) -> None:
        with self.lock:
            new, self.wanted = self.wanted, {}
        self.server.change(**new)

    def serve(self, work: Work) -> None:
        drawn = 0.0
        while not work.stopped:
            self.apply()
            self.server.turn()
            if time.monotonic() - drawn > REDRAW and not self.wanted:
                self.view.value, drawn = render(self.server), time.monotonic()
                work.say(f"serving: step {self.server.engine.steps}")
        self.apply()
        self.view.value = render(self.server)
        work.say("stopped")

    def _repr_mimebundle_(self, **options) -> dict:
        return super()._repr_mimebundle_(**options) | {"text/html": self.view.value}


dashboard = Dashboard


def render(server: Server) -> str:
    """The dashboard as HTML: numbers, the stages of the latest steps, the running requests, the last settings."""
    numbers = server.numbers()
    tiles = [("goodput", _goodput(numbers)), ("acceptance", _share(numbers["acceptance"])),
             ("counted over", f"{numbers['steps']} steps, {numbers['tokens']} tokens")]
    out = "".join(f"<div style='margin-right:34px'><div style='opacity:.7'>{name}</div><b data-number='{name}' "
                  f"style='font-size:19px'>{value}</b></div>" for name, value in tiles)
    return (f"<div style='max-width:960px;line-height:1.4'><div style='display:flex'>{out}</div>{_stages(server)}"
            "<div style='display:flex;flex-wrap:wrap;gap:30px;align-items:flex-start'>"
            f"{_requests(server)}{_shares(numbers)}</div>{_history(server, numbers)}</div>")


def _colours(server: Server) -> dict[str, str]:
    names = [*server.engine.family.drafters, "ngram"]
    return {name: look.look(name, i)[0] for i, name in enumerate(names)} | {"none": "#999999"}


def _stages(server: Server) -> str:
    """Drafting and verifying in the latest steps, one above the other; bars of drafting have their drafter's colour."""
    shown, width = server.steps(ROUNDS), 940
    if not shown:
        return "<p>Nothing is served yet: press <b>start</b>.</p>"
    begin = min(at for e in shown for at in (e.draft_began or e.target_began, e.target_began))
    end = max(e.target_began + e.target_seconds + e.verify_seconds for e in shown)
    scale, colours = (width - 60) / (end - begin), _colours(server)
    bars = [(e.draft_began, e.draft_seconds, 4, colours.get(e.drafter, "#999"), f"{e.drafter} drafts")
            for e in {(e.step, e.drafter): e for e in shown}.values() if e.draft_seconds]
    bars += [(e.target_began, e.target_seconds + e.verify_seconds, 34, look.BLUE,
              f"step {e.step}: the target verifies {e.batch} requests") for e in {e.step: e for e in shown}.values()]
    shapes = "".join(f"<rect x='{60 + (at - begin) * scale:.1f}' y='{y}' width='{max(1.5, seconds * scale):.1f}' "
                     f"height='24' fill='{colour}' stroke='white' stroke-width='.6'><title>{escape(text)}, "
                     f"{1000 * seconds:.0f} ms</title></rect>" for at, seconds, y, colour, text in bars)
    words = "".join(f"<text x='0' y='{y}' fill='currentColor' font-size='13'>{stage}</text>"
                    for stage, y in zip(STAGES, (21, 51)))
    title = f"the last {len({e.step for e in shown})} steps, {1000 * (end - begin):.0f} ms"
    return (f"<div style='opacity:.7;margin-top:8px'>{title}</div>"
            f"<svg viewBox='0 0 {width} 62' style='width:100%'>{words}{shapes}</svg>")


def _requests(server: Server) -> str:
    last = {e.request: e for e in server.steps() if e.emitted}
    colours, rows = _colours(server), []
    for number, (request, texts) in sorted(server.requests.items()):
        e = last.get(number)
        drafter = (e.drafter or "none") if e else ""
        rows.append((f"#{number} {texts}", (colours.get(drafter, "#999"), drafter),
                     f"{e.accepted} of {len(e.drafted)}" if e else "is being read", len(request.output_ids)))
    return _table(("request", "drafter", "accepted in its last step", "tokens"), rows)


def _shares(numbers: dict) -> str:
    total = sum(numbers["served"].values())
    return _table(("drafter", "share of verifications"),
                  [(name, f"{count / total:.0%}") for name, count in numbers["served"].items()])


def _history(server: Server, numbers: dict) -> str:
    now = [server.settings | numbers | {"steps": f"{numbers['steps']} (now)"}] * bool(numbers["tokens"])
    return _table(("drafting", "texts", "requests at once", "micro-batches", "tokens/s", "acceptance", "steps"),
                  [(one["policy"], one["texts"], one["at_once"], one["micro_batches"], f"{one['goodput']:.1f}",
                    _share(one["acceptance"]), one["steps"]) for one in [*now, *server.history]], "settings")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _table(heads: Sequence[str], rows: Sequence[Sequence], name: str = "") -> str:
    """A cell is a value, or a pair of a dot's colour and the value behind it. No table without rows."""
    def cell(value) -> str:
        colour, value = value if isinstance(value, tuple) else (None, value)
        dot = f"<span style='color:{colour}'>●</span> " if colour else ""
        return f"<td style=padding-right:16px>{dot}{escape(str(value))}</td>"

    if not rows:
        return ""
    head = "".join(f"<th style='text-align:left;padding-right:16px'>{h}</th>" for h in heads)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    return f"<table data-table='{name}' style='margin-top:10px'><tr>{head}</tr>{body}</table>"
