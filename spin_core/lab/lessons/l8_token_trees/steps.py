"""Verified trees, and tests of siblings, in forms that can be drawn."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spin_core.draft.tree import ancestor_mask, depths
from spin_core.engine import Engine, Prompt
from spin_core.lab.lessons.l6_verify_kernel.rules import P, Q
from spin_core.randomness import ACCEPT, DRAFT, RESIDUAL, exponential_race, uniform
from spin_core.request import SamplingParams
from spin_core.verify.chain import accepts
from spin_core.verify.tree import trials


@dataclass
class TreeStep:
    """One verification of a tree: what stood ``before``, each node's text, parent (-1: the text before) and drafters,
    the accepted ``path``, and the target's own token, None where the text ended on the path."""

    before: str
    tokens: list[str]
    parents: list[int]
    drafters: list[list[str]]
    path: list[int]
    own: str | None

    @property
    def depths(self) -> list[int]:
        return depths(self.parents)

    @property
    def mask(self) -> Tensor:
        """bool ``[n, n]``: which nodes each node sees."""
        return ancestor_mask(self.parents)

    @property
    def rescued(self) -> int:
        """Accepted tokens that a chain of first children would have lost: those from the first sibling on."""
        return next((len(self.path) - i for i, node in enumerate(self.path)
                     if self.parents[node] in self.parents[:node]), 0)


def tree_steps(engine: Engine, name: str, prompt: Prompt, params: SamplingParams) -> list[TreeStep]:
    """Answer ``prompt`` with the tree drafter ``name`` and return its verifications. Raises what the drafter raises."""
    start = len(engine.trace.events)
    request, = engine.generate([prompt], params, drafter=name)
    if name in engine.retired:
        raise engine.retired[name]
    word, prompt = (lambda token: engine.family.decode([token])), len(request.prompt_ids)
    steps = []
    for event in engine.trace.events[start:]:
        if event.kind == "step" and event.request == request.id and event.emitted and event.tree:
            before = request.ids[max(prompt, event.context - 12):event.context]
            tree, ended = event.tree, len(event.emitted) <= event.accepted
            steps.append(TreeStep(engine.family.decode(before), [word(t) for t in event.drafted], tree["parents"],
                                  tree["drafters"], tree["path"][:event.accepted],
                                  None if ended else word(event.emitted[-1])))
    return steps


# ---- multi-step sampling, on six tokens

@dataclass
class Trial:
    """One test at a node: what is left of ``p``, the ``q`` the child was drawn from given its elder siblings, the child
    (None: no child is left, a token is drawn), the number it had to pass, and whether it did."""

    p: np.ndarray
    q: np.ndarray
    token: int
    u: float | None
    accepted: bool


def walk(drawing: str = "without_replacement", seed: int = 0, count: int = 3, p: Tensor = P, q: Tensor = Q
         ) -> list[Trial]:
    """Draw ``count`` children from ``q [V]`` and test them one after the other; the trials up to the emitted token."""
    seeds, place = torch.tensor([seed]), torch.zeros(1, dtype=torch.int64)
    left, drawn = q[None].clone(), []
    for rank in range(count):
        drawn.append(int(q.argsort(descending=True)[rank]) if drawing == "top_k" else
                     int(exponential_race(left, seeds, place, DRAFT, rank)))
        if drawing == "without_replacement":
            left[0, drawn[-1]] = 0
    one_hot = torch.eye(len(p), dtype=p.dtype)
    tested_with = [one_hot[token] if drawing == "top_k" else q for token in drawn]
    out = []
    for rank, (rest, tested) in enumerate(trials(p, drawing, drawn, tested_with)):
        if rank == count:
            emitted = int(exponential_race(rest[None], seeds, place, RESIDUAL))
            out.append(Trial(rest.numpy(), tested.numpy(), emitted, None, True))
            break
        u = uniform(seeds, place, ACCEPT, rank)[0]
        accepted = bool(accepts(u, rest[drawn[rank]], tested[drawn[rank]]))
        out.append(Trial(rest.numpy(), tested.numpy(), drawn[rank], float(u), accepted))
        if accepted:
            break
    return out
