"""Timing calls in turns, and passes of the target and its drafters by their rows."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from spin_core.draft import Drafter, FedModel
from spin_core.lab.simulate.recording import MAX_GAMMA, Passes
from spin_core.request import Request, SamplingParams
from spin_core.runtime import ModelRunner
from spin_core.runtime.linear import has_bf16

# rows of a pass, and the slots they are spread over: one row each, a draft each, or a prompt
TARGET_ROWS = ((1, 1), (2, 2), (4, 4), (8, 8), (16, 8), (24, 8), (32, 8), (48, 8), (72, 8))
DRAFT_ROWS = ((1, 1), (2, 2), (4, 4), (8, 8), (64, 1), (256, 1))
PassTimes = dict[tuple[str, int, int, int], float]
"""Seconds of passes by (model, rows, slots that they are spread over, cached tokens of each slot)."""


def interleaved(work: Mapping[object, Callable], repeats: int) -> dict:
    """Median seconds of each callable; one call of each per round, so that all meet the same noise."""
    seconds: dict = {key: [] for key in work}
    for round_ in range(repeats + 1):
        for key, call in work.items():
            start = time.perf_counter()
            call()
            if round_:                                  # the first round warms up
                seconds[key].append(time.perf_counter() - start)
    return {key: statistics.median(values) for key, values in seconds.items()}


def timings(family, models: list[str], lookups: dict[str, Drafter], repeats: int,
            contexts: Sequence[int], target_rows=TARGET_ROWS, draft_rows=DRAFT_ROWS) -> PassTimes:
    """Time passes of the target and of the drafters ``models``, by (rows, slots), and drafts of ``lookups`` for 1 and 8
    requests."""
    slots, context = max(s for _, s in (*target_rows, *draft_rows)), max(contexts)
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
    add("target", ModelRunner(family.target, slots, room, family.vocab_size), target_rows, lambda n: {}, 10**6)
    for name in models:
        source = family.drafters[name]
        fed = isinstance(source.model, FedModel)
        hidden = family.target.config.get_text_config().hidden_size

        # as behind verified text: `fc` is a part of the cost
        def feed(rows: int, model=source.model, fed=fed) -> dict:
            return {"states": model.fed(torch.zeros(1, rows, hidden * len(model.layers_read)))} if fed else {}

        add(name, ModelRunner(source.model, slots, room, keep_states=fed, bf16=has_bf16()), draft_rows, feed, slots)
    for name, drafter in lookups.items():
        for batch in (1, 8):
            requests = [Request(tokens[:context].tolist(), SamplingParams(), slot=slot) for slot in range(batch)]
            drafter.propose(requests, [4] * batch)
            work[name, batch, batch, context] = lambda d=drafter, r=requests: d.propose(r, [4] * len(r))
    with torch.inference_mode():
        return interleaved(work, repeats)


def tables(times: dict[tuple[str, int, int, int], float], context: int) -> dict[str, Passes]:
    """What :func:`timings` found at one context, by model."""
    found: dict[str, dict[int, float]] = {}
    for (name, rows, _, at), seconds in times.items():
        if at == context:
            found.setdefault(name, {})[rows] = seconds
    return {name: Passes(tuple(by_rows), tuple(by_rows.values())) for name, by_rows in found.items()}
