"""Widgets: controls around a picture from :mod:`spin_core.plots`. They compute nothing of their own.

The picture is one PNG in the widget's state, so a stored notebook holds the last view only. Where widgets do
not run (papermill, HTML, a code host's preview) the notebook shows the same figures statically.
"""

from spin_core.widgets.decomposition import packing
from spin_core.widgets.panel import Panel
from spin_core.widgets.speculation import acceptance, stepper, theory

__all__ = ["Panel", "acceptance", "packing", "stepper", "theory"]
