"""Sliders for SPIRe's throughput model: when is which drafting worth it? And what of it did our family measure?"""

from matplotlib.figure import Figure

from spin_core.lab.lessons.l9_long_context import measure as lesson
from spin_core.lab.lessons.l9_long_context import plots
from spin_core.lab.lessons.panel import Panel, choices, menu, slider
from spin_core.lab.simulate import spire

WINDOWS = {"an eighth of the context": None, "64 tokens": 64, "1024 tokens": 1024}


def model(batch: int = 16, context: int = 16_384) -> Panel:
    """Batch, context, gamma, window rule and hardware intensity -> passes and throughput multipliers."""
    controls = [choices("batch, requests", [2 ** n for n in range(11)], "served at once", batch),
                choices("context, tokens", lesson.CONTEXTS, "of each request", context),
                slider("γ, drafted tokens", spire.DRAFTED, 1, 10, "per verification"),
                menu("window", list(WINDOWS), "what a sparse draft sees"),
                choices("FLOP per byte", [25, 50, 100, 200, 300, 600, 1200],
                        "what the hardware computes while it moves a byte", int(spire.HOI))]
    return Panel(controls, picture, kind="modelled",
                 task="Where does the small drafter with a full cache win? What does a CPU, with few FLOP per byte, "
                 "make of it?",
                 presets={"one short chat": {"batch, requests": 1, "context, tokens": 512},
                          "many long texts": {"batch, requests": 64, "context, tokens": 16_384},
                          "a CPU": {"FLOP per byte": 25}})


def picture(batch: int, context: int, drafted: int, window: str, hoi: float) -> Figure:
    """The passes at that setting, and what they come to."""
    setting = dict(drafted=drafted, window=WINDOWS[window], hoi=hoi)
    title = (f"modelled: batch {batch}, context {context:,}, gamma {drafted}, a sparse draft sees {window}, "
             f"{hoi:g} FLOP per byte")
    return plots.roofline(lesson.roofline(batch, context, **setting), lesson.multipliers(batch, context, **setting),
                          title)


def our_family() -> Panel:
    """Batch and gamma -> the model on our family's costs, beside what was measured at that setting."""
    return Panel([choices("batch, requests", [1, 2, 4, 8, 16], "served at once", lesson.LIVE_BATCH),
                  slider("γ, drafted tokens", 2, 1, 8, "per verification")],
                 lambda batch, gamma: plots.our_family(lesson.our_family(batch, gamma)[0], batch, gamma),
                 kind="modelled, measured",
                 task="Which drafter pays at batch 1, and which at batch 16? Why?")
