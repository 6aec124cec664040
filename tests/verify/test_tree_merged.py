"""Several drafters at one node: lossless by exact enumeration, whichever way each of them draws."""

from __future__ import annotations

import itertools

import pytest
import torch

from spin_core.verify.tree import trials

P, Q, OTHER = torch.tensor([[0.45, 0.3, 0.15, 0.1], [0.2, 0.15, 0.45, 0.2], [0.1, 0.4, 0.2, 0.3]], dtype=torch.float64)


def distribution(way: str, rows: list[int], distributions: list[torch.Tensor], stop: bool = False) -> torch.Tensor:
    """Of the emitted token. ``rows``: from which of ``distributions`` each child is drawn, -1 for the first
    distribution's likeliest token, one-hot. ``stop``: a third distinct token is not let in any more, as by a budget
    of two nodes."""
    out = torch.zeros_like(P)
    for tokens in itertools.product(range(len(P)), repeat=len(rows)):
        chance, tested, kept = 1.0, [], len(rows)
        for i, (token, row) in enumerate(zip(tokens, rows)):
            if stop and len(set(tokens[:i])) >= 2:
                kept = min(kept, i)
            if row < 0:
                chance *= float(token == int(distributions[0].argmax()))
                tested.append(torch.eye(len(P), dtype=P.dtype)[token])
                continue
            q = distributions[row].clone()
            tested.append(distributions[row])
            if way == "without_replacement":
                q[[t for t, r in zip(tokens[:i], rows) if r == row]] = 0
            chance *= float(q[token] / q.sum())
        if chance == 0:
            continue
        tokens, tested = list(tokens[:kept]), tested[:kept]
        for i, (left, q) in enumerate(trials(P, way, tokens, tested, rows[:kept])):
            if i == kept:
                out += chance * left
                break
            accepted = min(1.0, float(left[tokens[i]] / q[tokens[i]])) if q[tokens[i]] > 0 else 0.0
            out[tokens[i]] += chance * accepted
            chance *= 1 - accepted
    return out


@pytest.mark.parametrize("way", ["independent", "without_replacement"])
@pytest.mark.parametrize("rows", [[0, 1], [0, 0, 1], [0, 1, 1], [0, 1, 0, 1], [-1, 0, 1], [0, -1, 1]])
def test_children_of_several_drafters_are_lossless(way, rows):
    assert (distribution(way, rows, [Q, OTHER]) - P).abs().sum() / 2 < 1e-9


def test_a_budget_that_does_not_look_at_the_next_token_is_lossless():
    assert (distribution("independent", [0, 1, 0], [Q, OTHER], stop=True) - P).abs().sum() / 2 < 1e-9


def test_leaving_out_the_other_drafters_tokens_as_well_is_biased():
    """Elder siblings are left out of the distribution they were drawn from, and of no other."""
    rows, out = [0, 1], torch.zeros_like(P)
    for a, b in itertools.product(range(len(P)), repeat=2):
        chance = float(Q[a] * OTHER[b])
        # as if of one distribution
        for i, (left, q) in enumerate(trials(P, "without_replacement", [a, b], [Q, OTHER])):
            if i == len(rows):
                out += chance * left
                break
            token = (a, b)[i]
            accepted = min(1.0, float(left[token] / q[token])) if q[token] > 0 else 0.0
            out[token] += chance * accepted
            chance *= 1 - accepted
    assert (out - P).abs().sum() / 2 > 0.005
