"""The target's answers to the test split, what every drafter would draft before each token of them, and both recorded.

Greedy text is the same whichever drafter serves. So one pass of a drafter over the answers tells how long a draft would
be at each position, and how much of it the target would accept. No engine is needed.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from spin_core.draft import Drafter, DraftTable, NgramDrafter
from spin_core.draft.composite import COMPOSED_NGRAM
from spin_core.draft.pool import build, layers_read
from spin_core.engine import Engine
from spin_core.lab import provenance
from spin_core.lab.bench.timing import tables, timings
from spin_core.lab.distill.corpus import Shard
from spin_core.lab.distill.evaluate import MAX_GAMMA, Scores, score
from spin_core.lab.distill.kinds import kind_of
from spin_core.lab.distill.states import States, compute
from spin_core.lab.simulate.recording import Passes, Recording, chains
from spin_core.request import Request, SamplingParams
from spin_core.workloads import SETS, load_workload

STRICT = "ngram-strict"     # the lookup inside a composed drafter, which asks for a longer match
# Second turns of the test split's conversations; none is among those that drafters learn from.
FOLLOW_UPS = (
    "What would be the strongest objection to that?", "Please say the most important part again, in other words.",
    "Give me a worked example to go with that.", "What did you leave out?",
    "Put your answer into a small table.", "How would you put that to a child of eight?",
    "Please turn that into five short bullet points.", "What should I do next?",
    "Write a title and a closing sentence for that.", "Could you check your answer for mistakes and correct it?",
    "And now the same in a much more cheerful tone, please.", "Tell me more about the last point.")


@dataclass
class Answers:
    """The target's greedy answers, and where each prompt is from."""

    shard: Shard
    states: States
    workloads: list[str]
    categories: list[str]
    kinds: list[str]


def answer(family, limit: int | None, max_new_tokens: int, workload: str | Path | None = None,
           turns: int = 1) -> Answers:
    """Let the target answer the test splits, or the prompts of a file, ``limit`` of each.

    Of up to ``turns`` the later ones are a file's follow-ups, else :data:`FOLLOW_UPS` in turn: the target's own answer
    stands before them.
    """
    names = SETS if workload is None else [workload]
    prompts = [p for name in names for p in load_workload(name, split="test", limit=limit)]
    waiting = [(p, p.messages, list(p.follow_ups)) for p in prompts]
    if workload is None:
        waiting = [(p, messages, [FOLLOW_UPS[i % len(FOLLOW_UPS)]]) for i, (p, messages, _) in enumerate(waiting)]
    engine, kept = Engine(family, "none", max_batch=32, max_len=min(2048, family.max_context)), []
    while waiting and turns:
        requests = engine.generate([messages for _, messages, _ in waiting],
                                   SamplingParams(max_new_tokens=max_new_tokens))
        answered = [(*entry, r) for entry, r in zip(waiting, requests) if r.output_ids]
        kept += [(p, messages, r) for p, messages, _, r in answered]
        waiting = [(p, [*messages, {"role": "assistant", "content": r.text}, {"role": "user", "content": later[0]}],
                    later[1:]) for p, messages, later, r in answered if later]
        turns -= 1
    prompts, conversations, requests = zip(*kept)
    shard = Shard.build([r.prompt_ids for r in requests], [r.output_ids for r in requests], [0.0] * len(requests))
    states = compute(family.target, shard, family.vocab_size, layers=layers_read(family.drafters.values()))
    kinds = [kind_of([m["content"] for m in messages if m["role"] == "user"]) for messages in conversations]
    return Answers(shard, states, [p.workload for p in prompts], [p.category for p in prompts], kinds)


def is_lookup(family, name: str) -> bool:
    """Whether a drafter looks its drafts up: one-hot, and a whole draft for the price of one token."""
    return all(part == "ngram" or isinstance(family.drafters.get(part), DraftTable) for part in name.split("+"))


def pool(family) -> tuple[list[str], dict[str, Drafter]]:
    """Names of the drafters that are models, and the drafters that look up, :data:`STRICT` among them."""
    lookups = {name: build(name, family, 1, 1024, None)
               for name in (*family.drafters, "ngram", *(f"ngram+{table}" for table in family.drafters))
               if is_lookup(family, name)} | {STRICT: NgramDrafter(*COMPOSED_NGRAM)}
    return [name for name in family.drafters if name not in lookups], lookups


@dataclass
class View:
    """What a drafter would do before each token of one answer: how many tokens it drafts at most, how many of those are
    right, whether it looks them up; its overlap with the target's distribution; whether its first token is right."""

    drafted: list[int]
    accepted: list[int]
    looked: list[bool]
    overlap: list[float]
    hits: list[bool]


def views_of(family, name: str, answers: Answers, scores: Mapping[str, list[Scores]] | None = None) -> list[View]:
    """What that drafter, composed or not, would do before each token of every answer. ``scores``: of models, by name,
    that are known already."""
    if is_lookup(family, name):
        return lookup_views(family, build(name, family, 1, 1, None), answers)
    first, composed, rest = name.partition("+")
    if composed:        # the lookup's where it finds something, the other's elsewhere
        lookup = NgramDrafter(*COMPOSED_NGRAM) if first == "ngram" else build(first, family, 1, 1, None)
        return [View(*([a if found else b for found, a, b in zip(over.drafted, above, below)]
                        for above, below in zip(vars(over).values(), vars(under).values())))
                for over, under in zip(lookup_views(family, lookup, answers), views_of(family, rest, answers, scores))]
    if scores and name in scores:
        return model_views(scores[name])
    source = family.drafters[name]
    return model_views(score(source.model, source.ids, family.target, answers.shard, answers.states))


def model_views(scores: list[Scores]) -> list[View]:
    """:func:`views_of` for a model with these scores."""
    out = []
    for s in scores:
        count, accepted = len(s.overlap), chains(s.hits).tolist()
        out.append(View([0 if s.waits and t == 0 else MAX_GAMMA for t in range(count)], accepted, [False] * count,
                         s.overlap, s.hits[0]))
    return out


def lookup_views(family, drafter: Drafter, answers: Answers) -> list[View]:
    """:func:`views_of` for a drafter that looks up."""
    head = family.target.get_output_embeddings().weight.detach()
    out = []
    for i in range(len(answers.workloads)):
        prompt, text = answers.shard.sequence(i)
        start = int(answers.shard.starts[i]) + len(prompt) - 1
        guesses, request = [], Request(prompt, SamplingParams(), slot=0)
        for token in text:
            guesses.append(drafter.propose([request], [MAX_GAMMA]).tokens.tolist())
            request.output_ids.append(token)
        drafter.rollback(0, 0)
        accepted = [_agree(guess, text[at:]) for at, guess in enumerate(guesses)]
        p = [float((answers.states.hidden[start + t].float() @ head[guess[0]] - answers.states.log_z[start + t]).exp())
             if guess else 0.0 for t, guess in enumerate(guesses)]
        out.append(View(list(map(len, guesses)), accepted, [True] * len(text), p, [a > 0 for a in accepted]))
    return out


def _agree(guess: list[int], text: list[int]) -> int:
    """How many tokens of a guess are those of the text."""
    return next((k for k, (g, t) in enumerate(zip(guess, text)) if g != t), min(len(guess), len(text)))


# ---- a recording of them

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
    turn = [answers.workloads[:i].count(workload) for i, workload in enumerate(answers.workloads)]
    about = {"kind": "measured", "source": "python -m spin_core bench select --record", **provenance.here(),
             "text": f"greedy answers of at most {max_new_tokens} tokens, two turns of each prompt",
             "seconds": round(time.time() - began)}
    recording = Recording(
        tuple(arms), np.minimum(accepted, proposed), proposed,      # where nothing is drafted, nothing is accepted
        np.cumsum([0] + [len(text) for _, text in texts]), np.array([len(prompt) for prompt, _ in texts]),
        tuple(answers.workloads), tuple(f"{w}-{n}" for w, n in zip(answers.workloads, turn)),
        measure(family, models, lookups, repeats), tuple(lookups), about=about)
    for name in models:
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
