"""Dashboards of the whole system: choose a setting, see when each stage works, the drafters used, and the goodput."""

from __future__ import annotations

from collections import Counter

import numpy as np
from ipywidgets import Dropdown, IntSlider
from matplotlib.figure import Figure

from spin_core.decompose import plan
from spin_core.engine import Engine
from spin_core.lab.simulate.timeline import replay
from spin_core.lab.lessons.l7_paper_figures.plots import dashboard as draw, ladder as draw_ladder
from spin_core.request import SamplingParams
from spin_core.lab.simulate import arrivals, paper
from spin_core.lab.simulate.acceptance import NAMES
from spin_core.lab.simulate.hypotheses import HYPOTHESES
from spin_core.lab.simulate.profiles import DRAFTERS, HARDWARE
from spin_core.trace import Event
from spin_core.lab.lessons.panel import Panel
from spin_core.workloads import NAMES as WORKLOADS, load_workload

CARDS = [name for name, card in HARDWARE.items() if "fp16" in card.flops and name != "V100-16GB"]
POLICIES = ("spin", "spin-full", "greedy", "epsilon-greedy")
SHOWN = 6               # rounds in the picture
ARRIVING = [("all at once", ("closed", 2.0)), *((f"{kind}, {rate} per second", (kind, float(rate)))
                                                for kind in ("poisson", "bursty") for rate in (2, 8))]


def ladders(requests: int = 40) -> Panel:
    """The ladder by a hypothesis, beside the published one."""
    controls = [Dropdown(options=list(HYPOTHESES), value="recompute", description="hypothesis"),
                Dropdown(options=["V100-16GB", *CARDS], value=paper.CARD, description="card"),
                Dropdown(options=[1, 8, 16, 32], value=paper.BATCH, description="batch"),
                Dropdown(options=NAMES, value="CP", description="texts")]
    return Panel(controls, lambda: ladder_picture(*(c.value for c in controls), requests=requests))


def ladder_picture(hypothesis: str, card: str, batch: int, data_set: str, *, requests: int = 40) -> Figure:
    """The modelled ladder of LLaMA-7B; a card on which the weights do not fit shows none, and says so."""
    setting = f"LLaMA-7B on {card}, batch {batch}, {data_set}"         # another setting is always another picture
    try:
        rates = paper.ladder(data_set, hypothesis=hypothesis, card=card, batch=batch, requests=max(requests, 2 * batch))
    except ValueError as error:
        return draw_ladder(dict.fromkeys(paper.ABLATION, 0.0), paper.ABLATION, title=f"{setting}\n{error}")
    over = {rung: rate / rates["vanilla"] for rung, rate in rates.items()}
    return draw_ladder(over, paper.ABLATION, title=f"{HYPOTHESES[hypothesis].assumption}\n"
                       f"{setting}; vanilla: {rates['vanilla']:,.0f} tokens/s")


def dashboard(requests: int = 100, data_set: str = "Alpaca", policy: str = "1.4B", batch: int = 32,
              micro_batches: int = 2) -> Panel:
    """LLaMA-7B on modelled hardware."""
    controls = [Dropdown(options=NAMES, value=data_set, description="texts"),
                Dropdown(options=[*DRAFTERS, *POLICIES, "none"], value=policy, description="drafting"),
                Dropdown(options=["padded", "decomposed"], value="decomposed", description="verifying"),
                Dropdown(options=CARDS, value=CARDS[0], description="card"),
                IntSlider(batch, 1, 64, description="batch", continuous_update=False),
                IntSlider(micro_batches, 1, 8, description="micro-batches", continuous_update=False),
                Dropdown(options=ARRIVING, value=ARRIVING[0][1], description="arrivals")]
    return Panel(controls, lambda: picture(*(c.value for c in controls[:-1]), *controls[-1].value, requests=requests))


def picture(data_set: str, policy: str, strategy: str, card: str, batch: int, micro_batches: int,
            arriving: str = "closed", rate: float = 2.0, *, requests: int = 100) -> Figure:
    """The first rounds after the prompts are read, with what the whole run comes to in the title. ``arriving``: one of
    ``arrivals.KINDS``, ``rate`` requests per second unless all are there at once ("closed")."""
    groups = min(micro_batches, batch)
    run = paper.serve(data_set, "LLaMA-7B", policy, strategy=strategy, micro_batches=groups, batch=batch, card=card,
                      requests=requests, arrivals=arrivals.times(arriving, requests, rate))
    first = min(2 * groups, len(run.steps["start"]) - 1)
    last = min(first + SHOWN * groups, len(run.steps["end"])) - 1
    window = run.schedule().between(float(run.steps["start"][first]), float(run.steps["end"][last]))
    late = "" if arriving == "closed" else f", 95 % done within {np.percentile(run.latency, 95):.1f} s of arrival"
    return draw(window, run.served, title=f"{run.goodput:,.0f} tokens/s (modelled: LLaMA-7B, {card}), "
                                          f"{run.padding:.0%} padding{late}")


def live_dashboard(family, *, tokens: int = 24, workload: str = "mix", policy: str = "spin", batch: int = 4) -> Panel:
    """The embedded models on this machine, now."""
    controls = [Dropdown(options=WORKLOADS, value=workload, description="texts"),
                Dropdown(options=[*POLICIES, *family.drafters, "ngram", "none"], value=policy, description="drafting"),
                Dropdown(options=["padded", "decomposed", "auto"], value="auto", description="verifying"),
                IntSlider(batch, 1, 8, description="batch", continuous_update=False),
                Dropdown(options=["off", 2, 3, "auto"], value="off", description="pipeline")]
    return Panel(controls, lambda: live_picture(family, *(c.value for c in controls), tokens=tokens)[0])


def live_picture(family, workload: str, policy: str, strategy: str, batch: int, pipeline: str | int, *,
                 tokens: int = 24) -> tuple[Figure, float, dict[str, float]]:
    """The last rounds of serving ``2 * batch`` prompts on this machine, with what the whole run comes to in the title;
    its goodput in tokens per second, and the share of verifications by drafter."""
    prompts = [p.messages for p in load_workload(workload, "test", limit=2 * batch)]
    how = {"selector": policy} if policy in POLICIES else {"drafter": policy}
    engine = Engine(family, max_batch=batch, verification=strategy, pipeline=pipeline, **how)
    engine.generate(prompts, SamplingParams(max_new_tokens=tokens))
    return live(engine, strategy)


def live(engine: Engine, strategy: str) -> tuple[Figure, float, dict[str, float]]:
    """The same of what an engine has served."""
    steps = [e for e in engine.trace.events if e.kind == "step"]
    whole = replay(steps)
    groups = max(e.micro_batches for e in steps)
    late = sorted({s.round for s in whole.spans})[-(SHOWN + 2):]
    window = [s for s in whole.spans if s.round in late[:SHOWN]]
    window = whole.between(min(s.start for s in window), max(s.end for s in window))
    goodput = sum(len(e.emitted) for e in steps) / (max(e.time for e in steps) - engine.trace.events[0].time)
    served = Counter(e.drafter for e in steps if e.emitted)
    figure = draw(window, served, title=f"{goodput:,.0f} tokens/s (measured here), "
                                        f"{padding(steps, strategy):.0%} padding, "
                                        f"{groups} micro-batch{'es'[:2 * (groups > 1)]}")
    return figure, goodput, {name: count / served.total() for name, count in served.most_common()}


def padding(steps: list[Event], strategy: str) -> float:
    """The share of keys that a verification by ``strategy`` computes on for padding, over these steps."""
    by_step: dict[int, list[Event]] = {}
    for event in steps:
        by_step.setdefault(event.step, []).append(event)
    plans = [plan([e.context + len(e.drafted) for e in events], [len(e.drafted) + 1 for e in events], strategy)
             for events in by_step.values()]
    return 1 - sum(p.kv_true for p in plans) / sum(p.kv_touched for p in plans)
