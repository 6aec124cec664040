"""Record what every drafter would have done along the target's answers to the test split, and what passes cost."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from spin_core.lab import provenance
from spin_core.draft import Drafter
from spin_core.lab.bench.answers import STRICT, answer, lookup_views, pool, views_of
from spin_core.lab.bench.timing import tables, timings
from spin_core.lab.simulate.recording import Passes, Recording


def record(family, limit: int | None, max_new_tokens: int, repeats: int) -> Recording:
    """``limit`` prompts of each workload's test split (None: all), each with a second turn, answered greedily, and what
    drafters would draft."""
    began = time.time()
    answers = answer(family, limit, max_new_tokens, turns=2)
    models, lookups = pool(family)
    arms = [*models, *lookups]
    texts = [answers.shard.sequence(i) for i in range(len(answers.workloads))]
    views = {name: views_of(family, name, answers) for name in models}
    views |= {name: lookup_views(family, drafter, answers) for name, drafter in lookups.items()}
    proposed, accepted = (np.array([[n for view in views[name] for n in getattr(view, what)] for name in arms],
                                   np.uint8) for what in ("drafted", "accepted"))
    # in turn, as in the mix: any stretch of it holds the workloads in equal parts
    seen: dict[str, int] = {}
    turn = []
    for workload in answers.workloads:
        seen[workload] = seen.get(workload, -1) + 1
        turn.append(seen[workload])
    about = {"kind": "measured", "source": "python -m spin_core bench select --record", **provenance.here(),
             "text": f"greedy answers of at most {max_new_tokens} tokens, two turns of each prompt",
             "seconds": round(time.time() - began)}
    recording = Recording(
        tuple(arms), np.minimum(accepted, proposed), proposed,      # where nothing is drafted, nothing is accepted
        np.cumsum([0] + [len(text) for _, text in texts]), np.array([len(prompt) for prompt, _ in texts]),
        tuple(answers.workloads), tuple(f"{w}-{n}" for w, n in zip(answers.workloads, turn)),
        measure(family, models, lookups, repeats), tuple(lookups), about=about)
    for name in (*models, *(n for n in lookups if n not in ("ngram", STRICT))):
        recording = recording.compose(f"ngram+{name}", STRICT, name)
    return recording.take(np.argsort(turn, kind="stable"))


def timed(recording: Recording, family, repeats: int) -> Recording:
    """The recorded texts, which are the same on every machine, with passes as this machine takes them.

    Raises ValueError if the recording has a drafter that the family has not.
    """
    passes = measure(family, *pool(family), repeats)
    passes |= {name: passes[rest] for name, (_, rest) in recording.composed.items() if rest in passes}
    if missing := [a for a in recording.arms if a not in passes]:
        raise ValueError(f"the recording's {', '.join(missing)} cannot be timed: not in the family's pool")
    return replace(recording, passes=passes)


def measure(family, models: list[str], lookups: dict[str, Drafter], repeats: int, context: int = 192) \
        -> dict[str, Passes]:
    """Seconds of passes of the target and of every drafter, batch up to 8, ``context`` cached tokens per request."""
    return tables(timings(family, models, lookups, repeats, (context,)), context)
