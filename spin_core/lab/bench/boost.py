"""Boost-tuning: does a second drafter that learned what the first one misses add more than one that learned everything?

Counted on the held-out answers of ``python -m spin_core distill``: the share of tokens that either of two drafters
would have drafted first, which is what a tree merged of both could accept at its first depth. To make the two:

    python -m spin_core distill --drafter pruned-1L-4k --steps 300
    python -m spin_core distill --drafter pruned-1L-4k --steps 300 --boost-after fed-1L-8k
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from spin_core.lab.bench import Report
from spin_core.lab.distill.boost import older
from spin_core.lab.distill.command import divide, load
from spin_core.lab.distill.evaluate import score

DESCRIPTION = "what a boost-tuned second drafter adds to a first one, beside an ordinary second one"


def add_arguments(parser) -> None:
    parser.add_argument("--first", default="fed-1L-8k", help="the older drafter (default fed-1L-8k)")
    parser.add_argument("--second", default="pruned-1L-4k",
                        help="the drafter that was made twice (default pruned-1L-4k)")
    parser.add_argument("--out", type=Path, default=Path("runs/distill"), help="distill's folder")
    parser.add_argument("--device", default="cpu")


def run(args) -> Report:
    from spin_core import zoo

    family = zoo.load("smollm2", drafters=[], device=args.device)
    _, held = divide(*load(args.out / "data"))
    rows = coverage(family, args.first, [args.second, f"{args.second}-after-{args.first}"], args.out, *held)
    shard = held[0]
    return Report("boost", rows, notes=[
        f"{shard.answer_tokens} tokens of {len(shard.lengths)} held-out greedy answers"])


def coverage(family, first: str, seconds: list[str], out: Path, shard, states) -> list[dict]:
    """A row per second drafter: shares of the answers' tokens that the first, the second, and either gets right."""
    older_hits, rows = hits(family, first, out, shard, states), []
    for name in seconds:
        found = hits(family, name, out, shard, states)
        first_right, second_right, either_right = (
            float(right.float().mean()) for right in (older_hits, found, older_hits | found))
        rows.append({"first": first, "second": name, "first_right": first_right, "second_right": second_right,
                     "either_right": either_right})
    return rows


def hits(family, name: str, out: Path, shard, states) -> Tensor:
    """Which of all answers' tokens the drafter would have drafted first ``[N]``. ValueError if it has not been made."""
    drafter = older(family, name, out)
    scores = score(drafter.model, drafter.ids, family.target, shard, states, depth=1)
    return torch.tensor([hit for s in scores for hit in s.hits[0]], dtype=torch.bool)
