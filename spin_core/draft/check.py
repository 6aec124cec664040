"""Checks a draft where it is received, before anything of it reaches the target or its device.

A drafter may be code from anywhere. An id outside the vocabulary would poison a CUDA device for the whole process, and
a distribution that is none would change what is sampled. So whatever a drafter hands over is checked once, on the host,
and a drafter that hands over nonsense is retired like one that raises.
"""

import torch
from torch import Tensor

from spin_core.draft.base import Draft
from spin_core.draft.tree import Tree, depths

SUM_TOLERANCE = 1e-2        # of a row of q: half precision rounds sums over large vocabularies by that much


def check_draft(draft: Draft, asked: list[int], rooms: list[int], vocab_size: int) -> tuple[list[int], list[int]]:
    """The draft's tokens ``[N]`` and its counts ``[B]``, as lists. Raises ValueError for a draft that is none.

    ``asked [B]``: how many tokens, or levels of a tree, each request wanted at most. ``rooms [B]``: how many tokens fit
    into the request's slot of the target's cache.
    """
    if not isinstance(draft, Draft):
        raise ValueError(f"its draft is {type(draft).__name__}, not a Draft")
    for name in ("cu", "tokens", "prob_row", *(["parents"] if isinstance(draft, Tree) else [])):
        _check_whole(name, getattr(draft, name))
    cu, tokens, rows = draft.cu.tolist(), draft.tokens.tolist(), draft.prob_row.tolist()
    if len(cu) != len(asked) + 1 or cu[0] != 0 or cu[-1] != len(tokens) or any(a > b for a, b in zip(cu, cu[1:])):
        raise ValueError(f"its cu must rise from 0 to {len(tokens)} tokens in {len(asked)} steps, one for each "
                         f"request, got {cu}")
    counts = [end - start for start, end in zip(cu, cu[1:])]
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        raise ValueError(f"it drafted ids from {min(tokens)} to {max(tokens)} of a vocabulary of {vocab_size}")
    _check_probs(draft, rows, len(tokens), vocab_size)
    levels = counts
    if isinstance(draft, Tree):
        draft.check()       # again: it may have been changed since it was made
        levels = [1 + max(depths(parents), default=-1) for parents, _, _ in draft.requests()]
    for level, most, count, room in zip(levels, asked, counts, rooms):
        if level > most or count > room:
            raise ValueError(f"it drafted {count} tokens {level} deep where {most} were asked for and {room} fit")
    return tokens, counts


def _check_probs(draft: Draft, rows: list[int], count: int, vocab_size: int) -> None:
    """Is q a distribution for every token that was drawn from one?"""
    probs, ids = draft.probs, draft.ids
    width = vocab_size
    if ids is not None:
        _check_whole("ids", ids)        # thousands of them, at every step: not as a list
        width = len(ids)
        if not (width and bool((ids.diff() > 0).all()) and 0 <= int(ids[0]) and int(ids[-1]) < vocab_size):
            raise ValueError(f"its ids must rise within the vocabulary of {vocab_size}")
    if probs is not None and not (isinstance(probs, Tensor) and probs.is_floating_point() and probs.dim() == 2 and
                                  probs.shape[1] == width):
        raise ValueError(f"its probs must be floats [S, {width}], got {_describe(probs)}")
    most = 0 if probs is None else len(probs)
    if len(rows) != count or rows and not -1 <= min(rows) <= max(rows) < most:
        raise ValueError(f"its prob_row must hold -1 or a row of its {most} distributions for each of {count} tokens, "
                         f"got {rows}")
    # written so that NaN fails: it is neither near 1 nor at least 0
    if most and not bool((((probs.sum(-1) - 1).abs() <= SUM_TOLERANCE) & (probs.amin(-1) >= 0)).all()):
        raise ValueError("a row of its probs is no distribution: it holds NaN or negative numbers, or its sum is not 1")


def _check_whole(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor) or x.dtype != torch.int64 or x.dim() != 1:
        raise ValueError(f"its {name} must be a one-dimensional tensor of int64, got {_describe(x)}")


def _describe(x) -> str:
    return f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
