"""The whole system at the paper's scale: the ladder by a hypothesis, and a dashboard of modelled hardware."""

from functools import partial

import numpy as np
from matplotlib.figure import Figure

from spin_core.lab.lessons.l7_paper_figures.plots import dashboard as draw, ladder as draw_ladder
from spin_core.lab.simulate import arrivals, paper
from spin_core.lab.simulate.acceptance import NAMES
from spin_core.lab.simulate.hypotheses import HYPOTHESES
from spin_core.lab.simulate.profiles import DRAFTERS, HARDWARE
from spin_core.lab.lessons.panel import Panel, menu, slider

CARDS = [name for name, card in HARDWARE.items() if "fp16" in card.flops and name != "V100-16GB"]
H100 = next(name for name in CARDS if name.startswith("H100"))
POLICIES = ("spin", "spin-full", "greedy", "epsilon-greedy")
SHOWN = 6               # rounds in the picture
REQUESTS = 64           # that a modelled run serves, in the widget and in its stored picture
ARRIVING = [("all at once", ("closed", 2.0)), *((f"{kind}, {rate} per second", (kind, float(rate)))
                                                for kind in ("poisson", "bursty") for rate in (2, 8))]


def ladders(requests: int = 40) -> Panel:
    """The ladder by a hypothesis, beside the published one."""
    controls = [menu("hypothesis", list(HYPOTHESES), "what a pass computes", "recompute"),
                menu("card", ["V100-16GB", *CARDS], "the target's GPU", paper.CARD),
                menu("batch, requests", [1, 8, 16, 32], "served at once", paper.BATCH),
                menu("texts", NAMES, "whose acceptance and lengths are modelled", "CP")]
    return Panel(controls, partial(ladder_picture, requests=requests), kind="modelled, published",
                 task="Which hypothesis comes nearest to the grey bars? Then batch 32: which rung gains, and why?",
                 presets={"with a cache": {"hypothesis": "cached"}, "without": {"hypothesis": "recompute"},
                          "batch 32": {"batch, requests": 32}, "a card of 16 GB": {"card": "V100-16GB"}})


def ladder_picture(hypothesis: str, card: str, batch: int, data_set: str, *, requests: int = 40) -> Figure:
    """The modelled ladder of LLaMA-7B; a card on which the weights do not fit shows none, and says so."""
    setting = f"LLaMA-7B on {card}, batch {batch}, {data_set}"         # another setting is always another picture
    try:
        rates = paper.ladder(data_set, hypothesis=hypothesis, card=card, batch=batch, requests=max(requests, 2 * batch))
    except ValueError as error:
        return draw_ladder(dict.fromkeys(paper.ABLATION, 0.0), paper.ABLATION, title=f"{setting}\n{error}")
    over = {rung: rate / rates["vanilla"] for rung, rate in rates.items()}
    return draw_ladder(over, paper.ABLATION, title=f"{HYPOTHESES[hypothesis].assumption}\n"
                       f"{setting}: all parts bring {over[[*paper.ABLATION][-1]]:.2f} times vanilla's "
                       f"{rates['vanilla']:,.0f} tokens/s")


def dashboard(data_set: str = "Alpaca", policy: str = "1.4B", batch: int = 32, micro_batches: int = 2) -> Panel:
    """LLaMA-7B on modelled hardware."""
    controls = [menu("texts", NAMES, "whose acceptance and lengths are modelled", data_set),
                menu("drafting", [*DRAFTERS, *POLICIES, "none"], "one drafter for all, a policy, or none", policy),
                menu("verifying", ["padded", "decomposed"], "attention over padded rows, or over pieces of one width",
                     "decomposed"),
                menu("card", CARDS, "the target's GPU"),
                slider("batch, requests", batch, 1, 64, "served at once"),
                slider("micro-batches", micro_batches, 1, 8, "parts of the batch"),
                menu("arrivals", ARRIVING, "when requests come")]
    return Panel(controls, lambda *setting: picture(*setting[:-1], *setting[-1]), kind="modelled",
                 task="From how many micro-batches on does the pipeline lose? Where does padding hurt most?",
                 presets={"68M, 4 micro-batches": {"drafting": "68M", "micro-batches": 4},
                          "spin, padded": {"drafting": "spin", "verifying": "padded"}, "an H100": {"card": H100}})


def picture(data_set: str, policy: str, strategy: str, card: str, batch: int, micro_batches: int,
            arriving: str = "closed", rate: float = 2.0, *, requests: int = REQUESTS) -> Figure:
    """The first rounds after the prompts are read, with what the whole run comes to in the title. ``arriving``: one of
    ``arrivals.KINDS``, ``rate`` requests per second unless all are there at once ("closed")."""
    groups = min(micro_batches, batch)
    run = paper.serve(data_set, "LLaMA-7B", policy, strategy=strategy, micro_batches=groups, batch=batch, card=card,
                      requests=requests, arrivals=arrivals.times(arriving, requests, rate))
    first = min(2 * groups, len(run.steps["start"]) - 1)
    last = min(first + SHOWN * groups, len(run.steps["end"])) - 1
    window = run.schedule().between(float(run.steps["start"][first]), float(run.steps["end"][last]))
    late = "" if arriving == "closed" else f", 95 % done within {np.percentile(run.latency, 95):.1f} s of arrival"
    return draw(window, run.served, title=f"{run.goodput:,.0f} tokens/s over {requests} requests (modelled: LLaMA-7B, "
                                          f"{card}), {run.padding:.0%} padding{late}")
