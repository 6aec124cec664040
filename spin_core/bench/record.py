"""Record what every drafter would have done along the target's answers to the test split, and what passes cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from spin_core import provenance
from spin_core.bench import drafters
from spin_core.bench.products import interleaved
from spin_core.draft import Drafter, FedModel, NgramDrafter
from spin_core.draft.pool import COMPOSED_NGRAM, build
from spin_core.request import Request, SamplingParams
from spin_core.runtime import ModelRunner
from spin_core.select.recording import MAX_GAMMA, Passes, Recording

STRICT = "ngram-strict"     # the lookup inside a composed drafter, which asks for a longer match
# rows of a pass, and the slots they are spread over: one row each, a draft each, or a prompt
TARGET_ROWS = ((1, 1), (2, 2), (4, 4), (8, 8), (16, 8), (24, 8), (32, 8), (48, 8), (72, 8))
DRAFT_ROWS = ((1, 1), (2, 2), (4, 4), (8, 8), (64, 1), (256, 1))


def record(family, limit: int | None, max_new_tokens: int, repeats: int) -> Recording:
    """``limit`` prompts of each workload's test split (None: all), answered greedily; drafters judged on the text."""
    began = time.time()
    answers = drafters.answer(family, limit, max_new_tokens)
    models, lookups = pool(family)
    arms = [*models, *lookups]
    texts = [answers.shard.sequence(i) for i in range(len(answers.workloads))]
    views = {name: drafters.views_of(family, name, answers) for name in models}
    views |= {name: drafters.lookup_views(family, drafter, answers) for name, drafter in lookups.items()}
    proposed, accepted = (np.array([[n for view in views[name] for n in getattr(view, what)] for name in arms],
                                   np.uint8) for what in ("drafted", "accepted"))
    # in turn, as in the mix: any stretch of it holds the workloads in equal parts
    seen: dict[str, int] = {}
    turn = []
    for workload in answers.workloads:
        seen[workload] = seen.get(workload, -1) + 1
        turn.append(seen[workload])
    about = {"kind": "measured", "source": "python -m spin_core bench select --record", **provenance.here(),
             "text": f"greedy answers of at most {max_new_tokens} tokens", "seconds": round(time.time() - began)}
    recording = Recording(
        tuple(arms), np.minimum(accepted, proposed), proposed,      # where nothing is drafted, nothing is accepted
        np.cumsum([0] + [len(text) for _, text in texts]), np.array([len(prompt) for prompt, _ in texts]),
        tuple(answers.workloads), tuple(f"{w}-{n}" for w, n in zip(answers.workloads, turn)),
        measure(family, models, lookups, repeats), tuple(lookups), about=about)
    for name in (*models, *(n for n in lookups if n not in ("ngram", STRICT))):
        recording = recording.compose(f"ngram+{name}", STRICT, name)
    return recording.take(np.argsort(turn, kind="stable"))


def pool(family) -> tuple[list[str], dict[str, Drafter]]:
    """Names of the drafters that are models, and those that look up."""
    lookups = {name: build(name, family, 1, 1024, None) for name in (*family.drafters, "ngram")
               if drafters.is_lookup(family, name)} | {STRICT: NgramDrafter(*COMPOSED_NGRAM)}
    return [name for name in family.drafters if name not in lookups], lookups


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


def tables(times: dict[tuple[str, int, int, int], float], context: int) -> dict[str, Passes]:
    """What :func:`timings` found at one context, by model."""
    found: dict[str, dict[int, float]] = {}
    for (name, rows, _, at), seconds in times.items():
        if at == context:
            found.setdefault(name, {})[rows] = seconds
    return {name: Passes(tuple(by_rows), tuple(by_rows.values())) for name, by_rows in found.items()}


def timings(family, models: list[str], lookups: dict[str, Drafter], repeats: int,
            contexts: Sequence[int]) -> dict[tuple[str, int, int, int], float]:
    """Seconds of passes by (who, rows, slots that they are spread over, cached tokens of each slot)."""
    slots, context = max(s for _, s in TARGET_ROWS), max(contexts)
    tokens = torch.arange(context + 256) % family.vocab_size
    work = {}

    def add(name: str, runner: ModelRunner, shapes, feed, after: int) -> None:
        for slot in range(slots):
            runner.forward([slot], [context], tokens[:context], [0], **feed(context))

        def forward(rows: int, used: int, at: int) -> None:
            each = rows // used
            runner.cache.lengths[:used] = [at] * used           # what lies beyond is not read
            out = runner.forward(list(range(used)), [each] * used, tokens[:rows], list(range(min(rows, after))),
                                 **feed(rows))
            out.argmax(-1).tolist()

        work.update({(name, rows, used, at): (lambda r=rows, u=used, a=at: forward(r, u, a))
                     for at in contexts for rows, used in shapes})

    room = context + 256 + MAX_GAMMA
    add("target", ModelRunner(family.target, slots, room, family.vocab_size), TARGET_ROWS, lambda n: {}, 10**6)
    for name in models:
        source = family.drafters[name]
        fed = isinstance(source.model, FedModel)
        hidden = family.target.config.get_text_config().hidden_size
        feed = (lambda n: {"states": torch.zeros(1, n, hidden)}) if fed else (lambda n: {})
        add(name, ModelRunner(source.model, slots, room, keep_states=fed), DRAFT_ROWS, feed, slots)
    for name, drafter in lookups.items():
        for batch in (1, 8):
            requests = [Request(tokens[:context].tolist(), SamplingParams(), slot=slot) for slot in range(batch)]
            drafter.propose(requests, [4] * batch)
            work[name, batch, batch, context] = lambda d=drafter, r=requests: d.propose(r, [4] * len(r))
    with torch.inference_mode():
        return interleaved(work, repeats)
