"""The target's answers to the test split, and what every drafter would draft before each token of them.

Greedy text is the same whichever drafter serves. So one pass of a drafter over the answers tells how long a draft would
be at each position, and how much of it the target would accept. No engine is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from spin_core.draft import Drafter, DraftTable, NgramDrafter
from spin_core.draft.composite import COMPOSED_NGRAM
from spin_core.draft.pool import build, layers_read
from spin_core.engine import Engine
from spin_core.lab.distill.corpus import Shard
from spin_core.lab.distill.evaluate import MAX_GAMMA, Scores, score
from spin_core.lab.distill.states import States, compute
from spin_core.lab.simulate.recording import chains
from spin_core.request import Request, SamplingParams
from spin_core.workloads import SETS, load_workload

STRICT = "ngram-strict"     # the lookup inside a composed drafter, which asks for a longer match


@dataclass
class Answers:
    """The target's greedy answers, and where each prompt is from."""

    shard: Shard
    states: States
    workloads: list[str]
    categories: list[str]


def answer(family, limit: int | None, max_new_tokens: int) -> Answers:
    """Let the target answer the test splits."""
    prompts = [p for name in SETS for p in load_workload(name, split="test", limit=limit)]
    engine = Engine(family, "none", max_batch=32, max_len=1024)
    requests = engine.generate([p.messages for p in prompts], SamplingParams(max_new_tokens=max_new_tokens))
    kept = [(p, r) for p, r in zip(prompts, requests) if r.output_ids]
    shard = Shard.build([r.prompt_ids for _, r in kept], [r.output_ids for _, r in kept], [0.0] * len(kept))
    states = compute(family.target, shard, family.vocab_size, layers=layers_read(family.drafters.values()))
    return Answers(shard, states, [p.workload for p, _ in kept], [p.category for p, _ in kept])


def is_lookup(family, name: str) -> bool:
    """Whether a drafter looks its drafts up: one-hot, and a whole draft for the price of one token."""
    return all(part == "ngram" or isinstance(family.drafters.get(part), DraftTable) for part in name.split("+"))


def pool(family) -> tuple[list[str], dict[str, Drafter]]:
    """Names of the drafters that are models, and the drafters that look up, :data:`STRICT` among them."""
    lookups = {name: build(name, family, 1, 1024, None) for name in (*family.drafters, "ngram")
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


def views_of(family, name: str, answers: Answers) -> list[View]:
    """What that drafter, composed or not, would do before each token of every answer."""
    first, composed, rest = name.partition("+")
    if composed:        # the lookup's where it finds something, the other's elsewhere
        lookup = NgramDrafter(*COMPOSED_NGRAM) if first == "ngram" else build(first, family, 1, 1, None)
        return [View(*([a if found else b for found, a, b in zip(over.drafted, above, below)]
                        for above, below in zip(vars(over).values(), vars(under).values())))
                for over, under in zip(lookup_views(family, lookup, answers), views_of(family, rest, answers))]
    if is_lookup(family, name):
        return lookup_views(family, build(name, family, 1, 1, None), answers)
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
        guesses = proposals(prompt, text, MAX_GAMMA, drafter)
        drafter.rollback(0, 0)
        accepted = [_agree(guess, text[at:]) for at, guess in enumerate(guesses)]
        p = [float((answers.states.hidden[start + t].float() @ head[guess[0]] - answers.states.log_z[start + t]).exp())
             if guess else 0.0 for t, guess in enumerate(guesses)]
        out.append(View(list(map(len, guesses)), accepted, [True] * len(text), p, [a > 0 for a in accepted]))
    return out


def _agree(guess: list[int], text: list[int]) -> int:
    """How many tokens of a guess are those of the text."""
    return next((k for k, (g, t) in enumerate(zip(guess, text)) if g != t), min(len(guess), len(text)))


def proposals(prompt: list[int], text: list[int], count: int, drafter: Drafter | None = None) -> list[list[int]]:
    """What a drafter that looks up, by default prompt lookup, proposes before each token of the answer."""
    drafter, request = drafter or NgramDrafter(), Request(prompt, SamplingParams(), slot=0)
    out = []
    for token in text:
        out.append(drafter.propose([request], [count]).tokens.tolist())
        request.output_ids.append(token)
    return out
