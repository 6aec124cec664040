"""The lesson on drafters: what training did, what a draft vocabulary covers, what fed states are worth."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from spin_core.lab.bench.drafters import BY_PLACE
from spin_core.lab.distill.command import distill
from spin_core.lab.distill.corpus import Shard
from spin_core.lab.distill.recipes import RECIPES
from spin_core.lab.lessons.show import say
from spin_core.lab.results.stored import stored

Curve = tuple[list[float], list[float]]


def shipped_curves() -> dict[str, Curve]:
    """Tokens trained on, and tokens per verification on held-out answers, from the logs beside the shipped weights."""
    from spin_core import zoo

    out = {}
    for path in sorted(Path(zoo.__file__).with_name("drafters").glob("*.json")):
        log = [entry for entry in json.loads(path.read_text()).get("log", []) if entry.get("tokens")]
        if log:
            out[path.stem] = [e["tokens"] for e in log], [e["held_out_tokens_per_verification"] for e in log]
    return out


def small_run(family, name: str, folder: Path, *, answer_tokens: int, steps: int, shard: int = 32,
              train_prompts=None) -> Curve:
    """The whole recipe in small: data and training. The curve begins with the drafter pruned and not trained."""
    distill(family, {name: RECIPES[name]}, folder, budget=3600, answer_tokens=answer_tokens, shard_size=shard,
            train_prompts=train_prompts, steps=steps, evaluations=3,
            tell=lambda line: say(line.replace(f"{folder}/", "")))        # where that is differs from run to run
    log = json.loads((folder / name / f"{name}.json").read_text())["log"]
    return [e["tokens"] for e in log], [e["held_out_tokens_per_verification"] for e in log]


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


def stored_rows(own: Sequence[dict], directory: Path | None = None) -> tuple[Sequence[dict], dict]:
    """The rows of a stored ``bench drafters`` and their provenance, as a series has it: of the machine whose file
    knows most of the drafters in this run's ``own`` rows. Those rows, and no provenance, where no file lies."""
    names = {row["drafter"] for row in own}
    found = max(stored("drafters", directory=directory), default=None,
                key=lambda one: len(names & {row["drafter"] for row in one.rows}))
    return (found.rows, {"provenance": found.origin}) if found else (own, {})


def stored_agreement(own: dict[str, list[float]], requests: int, directory: Path | None = None) \
        -> tuple[dict[str, list[float]], dict, int]:
    """The stored agreement by drafter and place of ``bench drafters``, its provenance and number of requests; this
    run's ``own`` where no file has it."""
    for found in stored(BY_PLACE, directory=directory):
        rows = pd.DataFrame(found.rows).sort_values("place").groupby("drafter", sort=False)
        return rows.agreement.agg(list).to_dict(), {"provenance": found.origin}, found.rows[0]["requests"]
    return own, {}, requests
