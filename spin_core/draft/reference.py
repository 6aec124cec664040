"""Drafting in its textbook form: one request, no cache, no batch. The fast drafters are tested against it.

For a text x_1 ... x_n, drafted token i is drawn from the drafter's own distribution behind the text and the tokens
drafted before it (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318):

    d_i ~ q_i = q(. | x_1 ... x_n, d_1 ... d_(i-1)),      i = 1 ... gamma
"""

import torch
from torch import Tensor

from spin_core.randomness import DRAFT, exponential_race
from spin_core.request import SamplingParams
from spin_core.sampling import SamplingBatch, probabilities


@torch.no_grad()
def draft(model, ids: list[int], gamma: int, params: SamplingParams) -> tuple[list[int], Tensor]:
    """``gamma`` drafted tokens behind ``ids``, and the q ``[gamma, V]`` that each was drawn from.

    ``model``: a causal LM over the target's ids. A greedy token is the argmax, and its q is one-hot.
    """
    sampling = SamplingBatch.from_params([params])
    drafted: list[int] = []
    qs = []
    for i in range(gamma):
        logits = model(input_ids=torch.tensor([ids + drafted]), use_cache=False).logits[0, -1:]
        q = probabilities(logits, sampling)                         # [1, V]; temperature 0 makes it one-hot
        position = torch.tensor([len(ids) + i])                     # each position has random numbers of its own,
        committed = torch.tensor([len(ids)])                        # and new ones when it is drafted again
        drafted.append(int(exponential_race(q, sampling.seed, position, DRAFT, committed)))
        qs.append(q[0])
    return drafted, torch.stack(qs) if qs else torch.empty(0)


def prompt_lookup(ids: list[int], gamma: int, longest: int = 3, shortest: int = 2) -> list[int]:
    """Copy what followed the latest earlier occurrence of the longest suffix of ``ids`` that has one: at most ``gamma``
    tokens (Saxena, prompt lookup decoding)."""
    for size in range(min(longest, len(ids) - 1), shortest - 1, -1):
        suffix = ids[-size:]
        for start in range(len(ids) - size - 1, -1, -1):            # the latest first, the suffix itself left out
            if ids[start:start + size] == suffix:
                return ids[start + size:start + size + gamma]
    return []
