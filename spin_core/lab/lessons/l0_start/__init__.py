"""The first page: the system in one picture."""

from IPython.display import Image

from spin_core.lab.lessons import look
from spin_core.lab.lessons.l0_start import plots


def picture() -> Image:
    """The system, to be shown in the notebook."""
    return Image(look.png(plots.system(), dpi=200, whole=True), format="png", width=round(look.WIDTH * 100),
                 alt="A step of SPIN: pool, selector, drafts, pieces, verify, commit; below, two halves of the batch in "
                     "the pipeline.")
