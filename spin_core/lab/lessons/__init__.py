"""The lessons' code: a folder for each notebook, with what it measures, draws, lets the reader play with and checks.

Begin with ``l1_speculation``. Shared by all: ``look`` (one style), ``show`` (a figure with its numbers), ``panel`` (the
form of a widget), ``pages`` (what plays without a kernel), ``cores`` (simulations side by side), ``checking`` (tools
for exercises). A new lesson is a new folder and a notebook; nothing outside lab imports from here.
"""

from spin_core.lab.lessons.cores import on_all_cores
from spin_core.lab.lessons.show import begin, each, measured, modelled, progress, published, say, show

__all__ = ["begin", "each", "measured", "modelled", "on_all_cores", "progress", "published", "say", "show"]
