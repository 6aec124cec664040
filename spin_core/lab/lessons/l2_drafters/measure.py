"""The lesson on drafters: what training did, what a draft vocabulary covers, what fed states are worth."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from spin_core.lab.distill.command import distill, divide, load
from spin_core.lab.distill.corpus import Shard
from spin_core.lab.distill.drafters import RECIPES, draft_vocabulary, prune
from spin_core.lab.distill.evaluate import Scores, score, tokens_per_verification
from spin_core.lab.distill.states import States
from spin_core.lab.lessons.exercises import Answer, attempt, check, close, said

Curve = tuple[list[float], list[float]]


def shipped_curves() -> dict[str, Curve]:
    """Tokens trained on, and tokens per verification on held-out answers, from the logs beside the shipped weights."""
    from spin_core import zoo

    out = {}
    for path in sorted(Path(zoo.__file__).with_name("drafters").glob("*.json")):
        log = [entry for entry in json.loads(path.read_text()).get("log", []) if "tokens" in entry]
        if log:
            out[path.stem] = [e["tokens"] for e in log], [e["held_out_tokens_per_verification"] for e in log]
    return out


def small_run(family, name: str, folder: Path, *, answer_tokens: int, steps: int, shard: int = 32,
              train_prompts=None) -> Curve:
    """The whole recipe in small: data, states, training. The curve begins with the drafter pruned and not trained."""
    distill(family, {name: RECIPES[name]}, folder, budget=3600, answer_tokens=answer_tokens, shard_size=shard,
            train_prompts=train_prompts, settings={"batch": 8, "steps": steps, "evaluations": 3},
            tell=lambda line: print(line.replace(f"{folder}/", "")))        # where that is differs from run to run
    (train_set, _), held = divide(*load(folder / "data"))
    ids = draft_vocabulary(train_set, RECIPES[name].vocab, family.vocab_size, family.stop_ids)
    fresh = prune(family.target, RECIPES[name], ids).eval()
    untrained = tokens_per_verification(score(fresh, ids, family.target, *held), 4)
    log = json.loads((folder / name / f"{name}.json").read_text())["log"]
    return ([0, *(e["tokens"] for e in log)], [untrained, *(e["held_out_tokens_per_verification"] for e in log)])


def coverage(text: Shard, sizes: Sequence[int], vocab_size: int) -> list[float]:
    """Which share of answer tokens lies in the ``sizes`` most frequent ids, ranked on one half of the answers and
    counted on the other, so that no token ranks itself."""
    halves = [text.take(torch.arange(start, len(text.lengths), 2)) for start in (0, 1)]
    ranks, counts = ([_answer_counts(half, vocab_size) for half in order] for order in (halves, halves[::-1]))
    shares = []
    for size in sizes:
        hits = [float(count[rank.argsort(descending=True, stable=True)[:size]].sum() / count.sum())
                for rank, count in zip(ranks, counts)]
        shares.append(float(np.mean(hits)))
    return shares


def _answer_counts(text: Shard, vocab_size: int) -> torch.Tensor:
    ids = [t for i in range(len(text.lengths)) for t in text.sequence(i)[1]]
    return torch.bincount(torch.tensor(ids), minlength=vocab_size)


def agreement_by_place(scores: Sequence[Scores], places: int) -> list[float]:
    """How often the drafter's favourite is the target's token, at each place of a draft behind right tokens."""
    return [float(np.mean([hit for s in scores for hit in s.hits[min(place, len(s.hits) - 1)][place:]]))
            for place in range(places)]


def unfed(states: States) -> States:
    """The same without what the target knew: what a fed drafter does when it is starved."""
    return States(torch.zeros_like(states.hidden), states.log_z)


@check
def check_vocabulary(solution: Callable) -> Answer:
    """Exercise 2.1: ``solution(counts, size, stop_ids)`` are the ``size`` ids of the best draft vocabulary, ascending.

    Checked by what it covers: no set of that size with the stop ids in it may cover more of the text.
    """
    rng = np.random.default_rng(1)
    for vocab, size, stops, ends in ((12, 4, (2,), 0), (50, 10, (0, 49), 0), (30, 30, (5,), 0), (12, 4, (2,), 99)):
        counts = rng.permutation(np.arange(vocab) + 1)
        counts[list(stops)] = ends          # it ends every answer, but in a short text it may be rare
        ids, verdict = attempt(solution, counts.copy(), size, stops)
        if verdict:
            return verdict
        ids = [int(i) for i in ids]
        if len(ids) != size or len(set(ids)) != size:
            return Answer("wrong", f"{len(set(ids))} different ids, expected {size} (vocabulary of {vocab}).")
        if missing := set(stops) - set(ids):
            return Answer("wrong", f"Stop id {missing.pop()} is missing: such a drafter could never end an answer.")
        if ids != sorted(ids):
            return Answer("wrong", "The ids must ascend: column j of the drafter's head is the j-th of them.")
        others = np.sort(np.delete(counts, list(stops)))[::-1]
        best = int(counts[list(stops)].sum() + others[:size - len(stops)].sum())
        if counts[ids].sum() < best:
            return Answer("wrong", f"They cover {counts[ids].sum()} tokens of {counts.sum()}; {best} are possible.")
    return Answer("right", "The most frequent ids, and the stop ids whatever their count.")


@check
def check_speed(solution: Callable) -> Answer:
    """Exercise 2.2: ``solution(steps, c, v)`` is the speed-up of one answer over plain decoding.

    ``steps``: (drafted, accepted) of each verification; ``c`` the cost of a drafted token and ``v[k]`` that of a target
    pass over k + 1 rows, both in plain passes.
    """
    cases = [([(4, 4)], .1, [1, 1, 1, 1, 1]), ([(4, 0), (4, 2), (1, 1), (0, 0)], .05, [1, 1.1, 1.2, 1.3, 1.4]),
             ([(0, 0)] * 3, .5, [1.0]), ([(2, 1)] * 7, .3, [1, 1.5, 2])]
    for steps, c, v in cases:
        answer, verdict = attempt(solution, list(steps), c, list(v))
        if verdict:
            return verdict
        plain = sum(accepted + 1 for _, accepted in steps)
        expected = plain / sum(drafted * c + v[drafted] for drafted, _ in steps)
        if not close(answer, expected, 1e-9):
            hint = "mind the token of the target's own" if len(steps) == 1 else "each step pays for what it drafted"
            return Answer("wrong", f"{said(answer)} for the steps {steps}, c = {c}; expected {expected:.4f}: {hint}.")
    return Answer("right", "This is how the table above and every replay of this project count.")
