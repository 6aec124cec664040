"""Run the notebooks in order and collect what they make: ``python -m spin_core reproduce --help``.

Every notebook runs through papermill in a kernel of this very interpreter, in its own folder, with those of
the parameters ``profile``, ``device`` and ``figures_dir`` that its tagged cell declares. Written below
``--output`` (the checkout, by default):

    runs/PROFILE/NAME.ipynb, NAME.html    executed copies; NAME.failed.ipynb where a cell failed
    runs/PROFILE/state.json               what is finished, from what (a hash), and how long it took
    figures/                              what the notebooks saved, and index.html

A notebook is skipped when its source, the package, the profile and the device are what they were when it last
finished. One that fails is named with its cell and error; the others still run. Exit status: 0 all finished,
1 a notebook failed, 2 nothing to do as asked, 130 interrupted.

Begin with `runner`, which goes through all notebooks. `notebooks` finds them and knows what each depends on, `kernel`
executes one, `progress` shows how far it is, `storing` puts results into the notebooks themselves, `comparison` makes
the README's table, `command` is the command line.
"""

from pathlib import Path

from spin_core.lab import provenance

ROOT: Path = provenance.ROOT
"""The checkout, which holds notebooks/, figures/ and runs/."""


class NotebookError(Exception):
    """A notebook that cannot run or did not finish. The message says where and why."""
