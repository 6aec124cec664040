"""Independent simulations on all cores: each is one thread of Python, and a machine has several."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from spin_core.lab.lessons.show import progress

IDLE = 60           # seconds after which a worker process without work ends


def on_all_cores(function: Callable, calls: Mapping[Any, tuple] | Iterable, /, *more, **options) -> dict:
    """``{name: function(*arguments, *more, **options)}`` for the arguments ``calls`` has by name, in its order; of a
    plain list the items are names and only arguments at once.

    The calls are shared out among as many processes as there are cores. These stay a minute for the next time, and end
    when this process ends, however it does; with a single core the calls run here. None may depend on another's
    effects. An error in one of them is raised here.
    """
    from joblib import Parallel, delayed        # here: where it cannot start processes it says so when imported

    rows = dict(calls) if isinstance(calls, Mapping) else {item: (item,) for item in calls}
    results = Parallel(n_jobs=-1, max_nbytes=None, idle_worker_timeout=IDLE, initializer=_end_with,
                       initargs=(os.getpid(),), return_as="generator")(
        delayed(function)(*arguments, *more, **options) for arguments in rows.values())
    return dict(zip(rows, list(progress(results, len(rows), "simulations"))))       # to its end, where its line goes


def _end_with(parent: int, every: float = 1.0) -> None:
    """In a worker: end it when its parent has ended. A killed kernel tells its workers nothing."""
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(every)
        os._exit(1)

    if os.getppid() == parent:          # not where another process starts the workers for it
        threading.Thread(target=watch, daemon=True).start()
