"""Sparse drafting: how often the target agrees with itself when it drafts on a part of its cache, and SPIRe's ladder.

Two groups of texts, both greedy: the workloads' prompts as they are, and long ones, several of them joined. The ladder
comes from the logs of ``python -m spin_core distill`` (``--drafter spire --drafter spire-random-initialisation ...``,
all rungs with the same ``--steps``).
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

from spin_core.bench import Bar, Report
from spin_core.distill.drafters import LADDER, rung_name
from spin_core.engine import Engine
from spin_core.request import SamplingParams
from spin_core.simulate.spire import ABLATION

DESCRIPTION = "self-speculation on a sparse cache by window, and the ablation of trained SPIRe drafters"
WINDOWS = ("3/4", "1/2", "1/4", "1/8", "64")
BAR = 0.9


def add_arguments(parser) -> None:
    parser.add_argument("--prompts", type=int, default=24, help="of each group (default 24)")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--context", type=int, default=768, help="tokens of a long prompt, about (default 768)")
    parser.add_argument("--window", action="append", help=f"repeated (default {', '.join(WINDOWS)})")
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--ladder", type=Path, help="a folder of distill's, with trained rungs, or its stored ladder")
    parser.add_argument("--device", default="cpu")


def run(args) -> Report:
    from spin_core import zoo

    rows = ladder(args.ladder) if args.ladder else []
    if args.prompts:
        family = zoo.load("smollm2", drafters=[], device=args.device)
        params = SamplingParams(max_new_tokens=args.max_new_tokens)
        for group, prompts in texts(family, args.prompts, args.context).items():
            for window in args.window or WINDOWS:
                engine = Engine(family, f"sparse:target:{window}", args.gamma, max_batch=args.batch, pipeline="off")
                engine.generate(prompts, params)
                rows.append({"texts": group, "prompt_tokens": round(sum(map(len, prompts)) / len(prompts)),
                             "window": window, **agreement(engine)})
    half = [row["acceptance"] for row in rows if row.get("window") == "1/2"]
    return Report("spire", rows, [Bar("acceptance of the target's own sparse drafts, window half the context",
                                      min(half, default=None), f">= {BAR}")],
                  [f"gamma {args.gamma}, batch {args.batch}; acceptance: of the drafted tokens that were tested, those "
                   "before a draft's first rejection and that one, the share that held; the bar takes the worse group",
                   "ladder: tokens per verification at gamma 4 on held-out greedy answers, counted without the engine"])


def agreement(engine: Engine) -> dict:
    """What an engine's trace says of its drafts."""
    steps = [e for e in engine.trace.events if e.kind == "step" and e.drafted]
    accepted = sum(e.accepted for e in steps)
    tested = accepted + sum(e.accepted < len(e.drafted) for e in steps)
    return {"acceptance": accepted / max(1, tested), "of_drafted": engine.trace.metrics()["acceptance_rate"],
            "tokens_per_verification": engine.trace.metrics()["tokens_per_verification"], "verifications": len(steps)}


def texts(family, count: int, context: int) -> dict[str, list[list[int]]]:
    """Prompts as they are, and ``count`` long ones of about ``context`` tokens with a task at the end."""
    from spin_core.workloads import load_workload

    plain = [family.encode(p.messages) for p in load_workload("mix", "test", limit=count)]
    pieces = iter([m["content"] for p in load_workload("mix") for m in p.messages] * count)
    return {"workloads": plain, "joined": [joined(family, pieces, context) for _ in range(count)]}


def joined(family, pieces, context: int) -> list[int]:
    """Ids of one prompt: numbered notes, as many as fit, and a question about them."""
    notes: list[str] = []
    question = "Read these notes:\n\n{}\n\nWrite a short text that says what the notes are about."
    while True:
        more = notes + [f"Note {len(notes) + 1 + i}: {text}" for i, text in enumerate(islice(pieces, 4))]
        ids = family.encode(question.format("\n\n".join(more)))
        if len(ids) > context:
            return family.encode(question.format("\n\n".join(notes or more)))
        notes = more


def ladder(source: Path) -> list[dict]:
    """A row per trained rung: tokens per verification beside the published. ValueError if there is none.

    ``source``: the folder where distill has made the rungs, or a file that an earlier call with --json wrote.
    """
    if source.is_file():
        return [row for row in json.loads(source.read_text("utf-8"))["rows"] if "rung" in row]
    rows = []
    for rung in LADDER:
        path = source / rung_name(rung) / f"{rung_name(rung)}.json"
        if path.exists():
            log = json.loads(path.read_text("utf-8"))
            rows.append({"rung": rung, "steps": log["steps"], "trained_tokens": log["log"][-1]["tokens"],
                         "held_out_overlap": log["log"][-1]["held_out_overlap"],
                         "held_out_agreement": log["log"][-1]["held_out_agreement"],
                         "tokens_per_verification": log["log"][-1]["held_out_tokens_per_verification"],
                         "published": ABLATION[rung][0], "data": log["data"][:12]})
    if not rows:
        raise ValueError(f"--ladder {source}: no trained rung there; make them with python -m spin_core distill "
                         + " ".join(f"--drafter {rung_name(rung)}" for rung in LADDER))
    if len({row["steps"] for row in rows}) > 1 or len({row["data"] for row in rows}) > 1:
        raise ValueError(f"--ladder {source}: the rungs had different steps or data, and cannot be compared")
    return rows
