"""Record what every drafter would have done along the target's answers to the test split, and what passes cost."""

from __future__ import annotations

import time

import numpy as np
import torch

from spin_core import provenance
from spin_core.bench import drafters
from spin_core.bench.products import interleaved
from spin_core.distill.evaluate import score
from spin_core.draft import Drafter, FedLlama, NgramDrafter
from spin_core.draft.pool import COMPOSED_NGRAM, build
from spin_core.request import Request, SamplingParams
from spin_core.runtime import ModelRunner
from spin_core.select.recording import MAX_GAMMA, Passes, Recording, chains

STRICT = "ngram-strict"     # the lookup inside a composed drafter, which asks for a longer match
# rows of a pass, and the slots they are spread over: one row each, a draft each, or a prompt
TARGET_ROWS = ((1, 1), (2, 2), (4, 4), (8, 8), (16, 8), (24, 8), (32, 8), (48, 8), (72, 8))
DRAFT_ROWS = ((1, 1), (2, 2), (4, 4), (8, 8), (64, 1), (256, 1))


def record(family, limit: int | None, max_new_tokens: int, repeats: int) -> Recording:
    """``limit`` prompts of each workload's test split (None: all), answered greedily; drafters judged on the text."""
    began = time.time()
    answers = drafters.answer(family, limit, max_new_tokens)
    lookups = {name: build(name, family, 1, 1024, None) for name in (*family.drafters, "ngram")
               if drafters.is_lookup(family, name)} | {STRICT: NgramDrafter(*COMPOSED_NGRAM)}
    models = [name for name in family.drafters if name not in lookups]
    arms = [*models, *lookups]
    texts = [answers.shard.sequence(i) for i in range(len(answers.workloads))]
    accepted = {name: [] for name in arms}
    proposed = {name: [] for name in arms}
    for name in models:
        source = family.drafters[name]
        for scores in score(source.model, source.ids, family.target, answers.shard, answers.states):
            accepted[name].append(chains(scores.hits))
            proposed[name].append(np.full(len(scores.hits[0]), MAX_GAMMA, np.uint8))
            if scores.waits:                    # nothing is drafted before the first token
                accepted[name][-1][0] = proposed[name][-1][0] = 0
    for prompt, text in texts:
        for name, drafter in lookups.items():
            guesses = drafters.proposals(prompt, text, MAX_GAMMA, drafter)
            drafter.rollback(0, 0)
            proposed[name].append(np.array([len(g) for g in guesses], np.uint8))
            accepted[name].append(np.array([_agree(g, text[t:]) for t, g in enumerate(guesses)], np.uint8))
    # in turn, as in the mix: any stretch of it holds the workloads in equal parts
    seen: dict[str, int] = {}
    turn = []
    for workload in answers.workloads:
        seen[workload] = seen.get(workload, -1) + 1
        turn.append(seen[workload])
    about = {"kind": "measured", "source": "python -m spin_core bench select --record", **provenance.here(),
             "text": f"greedy answers of at most {max_new_tokens} tokens", "seconds": round(time.time() - began)}
    recording = Recording(
        tuple(arms), *(np.stack([np.concatenate(what[name]) for name in arms]) for what in (accepted, proposed)),
        np.cumsum([0] + [len(text) for _, text in texts]), np.array([len(prompt) for prompt, _ in texts]),
        tuple(answers.workloads), tuple(f"{w}-{n}" for w, n in zip(answers.workloads, turn)),
        measure(family, models, lookups, repeats), tuple(lookups), about=about)
    for model in models:
        recording = recording.compose(f"ngram+{model}", STRICT, model)
    return recording.take(np.argsort(turn, kind="stable"))


def _agree(guess: list[int], text: list[int]) -> int:
    return next((k for k, (g, t) in enumerate(zip(guess, text)) if g != t), min(len(guess), len(text)))


def measure(family, models: list[str], lookups: dict[str, Drafter], repeats: int, context: int = 192) \
        -> dict[str, Passes]:
    """Seconds of passes of the target and of every drafter, batch up to 8, ``context`` cached tokens per request."""
    slots = max(s for _, s in TARGET_ROWS)
    tokens = torch.arange(context + 256) % family.vocab_size
    work = {}

    def add(name: str, runner: ModelRunner, shapes, feed, after: int) -> None:
        for slot in range(slots):
            runner.forward([slot], [context], tokens[:context], [0], **feed(context))

        def forward(rows: int, used: int) -> None:
            each = rows // used
            out = runner.forward(list(range(used)), [each] * used, tokens[:rows], list(range(min(rows, after))),
                                 **feed(rows))
            out.argmax(-1).tolist()
            for slot in range(used):
                runner.cache.truncate(slot, context)

        work.update({(name, rows): (lambda r=rows, u=used: forward(r, u)) for rows, used in shapes})

    room = context + 256 + MAX_GAMMA
    add("target", ModelRunner(family.target, slots, room, family.vocab_size), TARGET_ROWS, lambda n: {}, 10**6)
    for name in models:
        source = family.drafters[name]
        fed = isinstance(source.model, FedLlama)
        hidden = family.target.config.get_text_config().hidden_size
        feed = (lambda n: {"states": torch.zeros(1, n, hidden)}) if fed else (lambda n: {})
        add(name, ModelRunner(source.model, slots, room, keep_states=fed), DRAFT_ROWS, feed, slots)
    for name, drafter in lookups.items():
        for batch in (1, 8):
            requests = [Request(tokens[:context].tolist(), SamplingParams(), slot=slot) for slot in range(batch)]
            drafter.propose(requests, [4] * batch)
            work[name, batch] = lambda d=drafter, r=requests: d.propose(r, [4] * len(r))
    with torch.inference_mode():
        times = interleaved(work, repeats)
    names = dict.fromkeys(name for name, _ in work)
    return {name: Passes(tuple(r for n, r in work if n == name), tuple(times[k] for k in work if k[0] == name))
            for name in names}
