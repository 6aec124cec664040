"""Independent simulations on all cores: each is one thread of Python, and a machine has several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any


def on_all_cores(function: Callable, calls: Mapping[Any, tuple] | Iterable, /, *more, **options) -> dict:
    """``{name: function(*arguments, *more, **options)}`` for the arguments ``calls`` has by name, in its order; of a
    plain list the items are names and only arguments at once.

    The calls are shared out among as many processes as there are cores, which stay for the next time; with a single
    core they run here. None may depend on what another leaves behind. An error in one of them is raised here.
    """
    from joblib import Parallel, delayed        # here: where it cannot start processes it says so when imported

    rows = dict(calls) if isinstance(calls, Mapping) else {item: (item,) for item in calls}
    results = Parallel(n_jobs=-1, max_nbytes=None)(
        delayed(function)(*arguments, *more, **options) for arguments in rows.values())
    return dict(zip(rows, results))
