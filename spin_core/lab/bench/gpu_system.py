"""The section "system" of ``bench gpu``: from plain decoding to all of SPIN at the shape of LLaMA-7B.

Weights of that size cannot travel with a benchmark that needs no network, so they are random. The models do all their
work on the device: they draft, verify, attend, write and roll back their caches. Only what counts as accepted is
replayed from a recording of real drafters (:mod:`spin_core.lab.simulate.recording`): each drafter of one of the paper's
shapes has the record of one of them. Speed is then that of such hardware and shapes with such acceptance, and the text
means nothing.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from spin_core.lab.bench import Bar, Report
from spin_core.lab.bench import names
from spin_core.lab.bench.gpu import TINY, Settings, attempt
from spin_core.lab.bench.gpu_drafting import random_llama
from spin_core.lab.bench.rounds import of_trace
from spin_core.draft.base import CaughtUp, never_stopped
from spin_core.engine import Engine
from spin_core.request import Request, SamplingParams
from spin_core.select.assigner import DEFAULT_GAMMA_MODEL
from spin_core.step import DraftGroup, RequestOutcome
from spin_core.lab.simulate.recording import Recording
from spin_core.lab.simulate.profiles import DRAFTERS, TARGETS, Model
from spin_core.zoo import DraftModel

BATCHES = (1, 8, 32, 64)
SHAPES = ("68M", "265M", "1.1B")
HOW = "random weights, acceptance replayed"
WARM = 0.4                  # of a case's time


def on_gpu(settings: Settings) -> Report:
    recording = Recording.load()
    if settings.dry:
        drafters = [(replace(TINY, name=name), arm) for name, arm in recorded(recording).items()]
        return run(TINY, drafters, recording, (1, 2), "cpu", torch.float32, settings.left, 0.2)
    return run(TARGETS["LLaMA-7B"], [(DRAFTERS[name], arm) for name, arm in recorded(recording).items()], recording,
               BATCHES, settings.device, torch.bfloat16, settings.left)


def recorded(recording: Recording) -> dict[str, str]:
    """The recorded drafter whose acceptance each shape has: of the models the worst, one between, and the best."""
    models = sorted((a for a in recording.drafters if a not in recording.lookups),
                    key=lambda arm: recording.accepted[recording.arms.index(arm)].mean())
    return {name: models[i * (len(models) - 1) // (len(SHAPES) - 1)] for i, name in enumerate(SHAPES)}


def run(target: Model, drafters: Sequence[tuple[Model, str]], recording: Recording, batches: Sequence[int], device: str,
        dtype: torch.dtype, left: Callable[[], float] = lambda: math.inf, most: float = math.inf) -> Report:
    """One row for each batch and rung, as long as ``left()`` seconds are positive. ``drafters``: shapes, the first of
    which is vanilla's, and the recorded drafters whose acceptance they have. A case takes ``most`` seconds at most."""
    named = ", ".join(f"{shape.name} that of {arm}" for shape, arm in drafters)
    report = Report("system", [], notes=[
        f"{HOW}: {target.name} and its drafters compute everything ({dtype}), but a recording says how much of a draft "
        f"is accepted ({named}); no prompt lookup, which would need real text. Random drafts fail at once, so that "
        "accept / reject (verify_share) reads fewer rows than it would",
        f"continuous batches of the {len(recording)} recorded answers; each case takes its share of the time, "
        f"{WARM:.0%} of it to warm up. Prompts are read in the target's passes; other_share: admission and committing",
        "graphs: did passes replay CUDA graphs? The engine asks for them where several micro-batches run"])
    longest = -(-int((recording.prompts + recording.lengths).max() + 16) // 64) * 64
    family = attempt(report, "the models", lambda: random_family(target, [shape for shape, _ in drafters], longest,
                                                                 device, dtype))
    if family is None:
        return report
    recorded = {shape.name: recording.arms.index(arm) for shape, arm in drafters}
    order = np.random.default_rng(0).permutation(len(recording)).tolist()
    cases = [(batch, rung) for batch in batches for rung in ladder(family)]
    rate: dict[tuple[int, str], float] = {}
    for done, (batch, rung) in enumerate(report.within(left, cases)):
        stop = time.monotonic() + min(most, left() / (len(cases) - done))
        drafter, options = ladder(family)[rung]
        row = attempt(report, f"batch {batch}, {rung}", lambda: measure(
            Replayed(family, recording, recorded, *drafter, max_batch=batch, max_len=longest, **options), order, stop))
        if row is not None:
            rate[batch, rung] = row["tokens_per_s"]
            plain = rate.get((batch, names.PLAIN))
            row["vs_plain"] = row["tokens_per_s"] / plain if plain else None
            report.rows.append({"batch": batch, "rung": rung, "how": HOW} | row)
            if rung == names.WHOLE and plain:
                report.bars.append(Bar(f"SPIN over plain decoding, {target.name}, batch {batch}, {HOW}",
                                       row["vs_plain"], ">= 0.97"))
    return report


def ladder(family) -> dict[str, tuple[tuple, dict]]:
    """Rung -> (the one drafter and its gamma, or nothing; options of the engine), as in ``bench peers``."""
    pool, vanilla = {"arms": list(family.drafters)}, (next(iter(family.drafters)), DEFAULT_GAMMA_MODEL)
    middle = {title: ((), options | pool) if "selector" in options else (vanilla, options)
              for title, options in names.RUNGS.items()}
    return {names.PLAIN: (("none", 0), {})} | middle | {names.WHOLE: ((), pool)}


def random_family(target: Model, drafters: Sequence[Model], context: int, device: str, dtype: torch.dtype):
    """What the engine needs of a family. Its text is empty: tokens of random models stand for nothing."""
    models = {shape.name: DraftModel(shape.name, random_llama(shape, device, dtype), None, context)
              for shape in drafters}
    return SimpleNamespace(target=random_llama(target, device, dtype), drafters=models, vocab_size=target.vocab,
                           stop_ids=(), max_context=context, decode=lambda ids: "")


class Replayed(Engine):
    """An engine whose models do all their work, while ``recording`` says what of it is accepted.

    ``recorded``: for each drafter of the family the index of its arm. A request stands for a recorded answer: its
    prompt is as long, and it ends where the answer ends. What drafters find out by catching up is replayed, too.
    """

    def __init__(self, family, recording: Recording, recorded: dict[str, int], *drafter, **options) -> None:
        super().__init__(family, *drafter, **options)
        self.recording, self.recorded = recording, recorded
        self.answer: dict[int, int] = {}            # of each request, by its id
        self.stages._accept_reject = partial(self._accept_recorded, self.stages._accept_reject)
        for name in recorded if self.selection else ():
            drafter = self.get_drafter(name)
            drafter.catch_up = partial(self._caught_up, name, drafter.catch_up)

    def serve(self, answers: Iterator[int], done: Callable[[], bool]) -> None:
        """Step at least once and until ``done()``; as a request ends, the next one is submitted."""
        while True:
            while len(self.running) + len(self.queue) < self.max_batch:
                self.answering(next(answers))
            self.step()
            if done():
                return

    def answering(self, answer: int) -> Request:
        """Submit a request for that recorded answer. Raises ValueError if it cannot be served."""
        prompt = np.random.default_rng(answer).integers(self.family.vocab_size, size=self.recording.prompts[answer])
        request = self.submit(prompt.tolist(), SamplingParams(max_new_tokens=int(self.recording.lengths[answer]),
                                                              stop_ids=()))
        if request.error:
            raise ValueError(request.error)
        self.answer[request.id] = answer
        return request

    def held(self, request: Request, drafter: str, position: int) -> int:
        """How many tokens of that drafter's draft are accepted after ``position`` tokens of the answer."""
        at = self.recording.starts[self.answer[request.id]] + position
        return int(self.recording.accepted[self.recorded[drafter], at])

    def _accept_recorded(self, accept_reject: Callable, group: DraftGroup, logits: Tensor) -> list[RequestOutcome]:
        outcomes = accept_reject(group, logits)
        for work, outcome in zip(group.members, outcomes):
            if outcome.drafted and not outcome.failed:
                held = self.held(work.request, group.drafter, len(work.request.output_ids))
                outcome.accepted = min(len(outcome.drafted), held)
                outcome.tokens = outcome.drafted[:outcome.accepted] + outcome.tokens[-1:]
        return outcomes

    def _caught_up(self, name: str, read: Callable, requests: list[Request], stopped=never_stopped) -> list[CaughtUp]:
        out = read(requests, stopped)
        for request, found in zip(requests, out):
            first = found.first - len(request.prompt_ids)
            found.hits = [self.held(request, name, first + i) > 0 for i in range(len(found.hits))]
        return out


def measure(engine: Replayed, order: Sequence[int], stop: float) -> dict:
    """Serve until time ``stop``, the last part of it by the clock: from when all of the first batch have begun. Raises
    what took a drafter out, and RuntimeError when a request failed."""
    begin = time.monotonic()
    warm = begin + WARM * (stop - begin)
    engine.serve(cycle(order[::-1]), lambda: time.monotonic() >= warm)
    engine.cancel_all()
    answers = cycle(order)                          # the same texts for every rung
    engine.serve(answers, lambda: all(r.output_ids for r in engine.running) or time.monotonic() >= stop)
    engine.trace.events.clear()
    start = time.perf_counter()
    engine.serve(answers, lambda: time.monotonic() >= stop)
    seconds = time.perf_counter() - start
    engine.cancel_all()
    for error in engine.retired.values():
        raise error
    if any(event.reason == "error" for event in engine.trace.events):
        raise RuntimeError("requests failed: the target's logits were not finite")
    steps, graphs = [event for event in engine.trace.events if event.kind == "step"], engine.target.graphs
    return {"tokens_per_s": sum(len(e.emitted) for e in steps) / seconds, **of_trace(engine.trace),
            "micro_batches": statistics.mode(e.micro_batches for e in steps),
            "graphs": bool(graphs and graphs.buckets and not graphs.failed)}
