"""The first page: the system in one picture."""

import matplotlib
from IPython.display import Image

from spin_core.lab.lessons import look
from spin_core.lab.lessons.l0_start import plots
from spin_core.lab.lessons.show import folder


def picture() -> Image:
    """The system, to be shown in the notebook; a drawing without numbers, kept as ``system.svg`` for the README."""
    figure = plots.system()
    folder().mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "system"}), look.style():
        figure.savefig(folder() / "system.svg", metadata={"Date": None})
    return Image(look.png(figure, dpi=200, whole=True), format="png", width=round(look.WIDTH * 100),
                 alt="A step of SPIN: pool, selector, drafts, pieces, verify, commit; below, two halves of the batch "
                     "in the pipeline.")
