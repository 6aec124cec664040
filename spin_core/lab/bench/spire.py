"""Sparse drafting: how often the target agrees with itself when it drafts on a part of its cache, and SPIRe's ladder.

Three groups of texts. *Documents* are long and go on where they were cut, as the texts do on which sparse self-drafts
were published (books; MagicDec, arXiv 2408.11049): here Python's own language reference, which every interpreter
brings along. The bar is on them, greedy and sampled. Beside them stand the workloads' prompts as they are,
and *joined* ones. These are chats: half of a short one leaves its instruction out. The ladder comes from the
logs of ``python -m spin_core distill`` (``--drafter spire --drafter spire-random-initialisation ...``,
all rungs with the same ``--steps``).
"""

import json
from itertools import islice
from pathlib import Path

from spin_core import zoo
from spin_core.lab.bench import Bar, Report, positive
from spin_core.lab.distill.recipes import LADDER, rung_name
from spin_core.engine import Engine
from spin_core.request import SamplingParams
from spin_core.lab.simulate.spire import ABLATION
from spin_core.workloads import load_workload

DESCRIPTION = "self-speculation on a sparse cache by window, and the ablation of trained SPIRe drafters"
WINDOWS = ("3/4", "1/2", "1/4", "1/8", "64")
GROUPS = ("documents", "joined", "workloads")
TOPICS = ("specialnames", "compound", "types", "formatstrings", "string-methods", "typesseq")     # the longest ones
BAR = 0.9
LADDER_NOTE = "ladder: tokens per verification at gamma 4 on held-out greedy answers, counted without the engine"
NOTES = [
    "acceptance: of the drafted tokens that were tested, those before a draft's first rejection and that one, the "
    "share that held; the bar takes the lower of greedy and sampled (temperature 1)",
    "joined and workloads are chats: half of a short one leaves its instruction out"]


def add_arguments(parser) -> None:
    parser.add_argument("--prompts", type=positive, default=8, help="of each group (default 8)")
    parser.add_argument("--max-new-tokens", type=positive, default=64)
    parser.add_argument("--context", type=positive, default=1024, help="tokens of a long prompt, about (default 1024)")
    parser.add_argument("--texts", nargs="+", choices=GROUPS, default=list(GROUPS), help="groups (default: all)")
    parser.add_argument("--window", action="append", help=f"repeated (default {', '.join(WINDOWS)})")
    parser.add_argument("--gamma", type=positive, default=4)
    parser.add_argument("--batch", type=positive, default=8)
    parser.add_argument("--ladder", type=Path, help="a folder of distill's, with trained rungs, or its stored ladder")
    parser.add_argument("--device", default="cpu")


def run(args) -> Report:
    rows, notes = (ladder(args.ladder), [LADDER_NOTE]) if args.ladder else ([], [])
    if args.prompts:
        notes += NOTES
        family = zoo.load("smollm2", drafters=[], device=args.device)
        greedy = SamplingParams(max_new_tokens=args.max_new_tokens)
        for group in args.texts:
            prompts = texts(family, group, args.prompts, args.context)
            runs = [("greedy", greedy, window) for window in args.window or WINDOWS]
            if group == "documents":
                runs.append(("sampled", greedy.with_(temperature=1.0), "1/2"))
            for decoding, params, window in runs:
                engine = Engine(family, f"sparse:target:{window}", args.gamma, max_batch=args.batch, pipeline="off",
                                max_len=max(map(len, prompts)) + args.max_new_tokens)
                requests = engine.generate(prompts, [params.with_(seed=seed) for seed in range(len(prompts))])
                if failed := [r.error for r in requests if r.error]:
                    raise ValueError(f"{group}, window {window}: {failed[0]}")
                rows.append({"texts": group, "decoding": decoding, "window": window, "prompts": len(prompts),
                             "prompt_tokens": round(sum(map(len, prompts)) / len(prompts)), **agreement(engine)})
    half = [row["acceptance"] for row in rows if row.get("window") == "1/2" and row["texts"] == "documents"]
    return Report("spire", rows, [Bar("acceptance of the target's own sparse drafts on long documents, window half the "
                                      "context", min(half, default=None), f">= {BAR}")], notes)


def agreement(engine: Engine) -> dict:
    """What an engine's trace says of its drafts."""
    steps = [e for e in engine.trace.events if e.kind == "step" and e.drafted]
    accepted = sum(e.accepted for e in steps)
    tested = accepted + sum(e.accepted < len(e.drafted) for e in steps)
    return {"acceptance": accepted / max(1, tested), "of_drafted": engine.trace.metrics()["acceptance_rate"],
            "tokens_per_verification": engine.trace.metrics()["tokens_per_verification"], "verifications": len(steps)}


def texts(family, group: str, count: int, context: int) -> list[list[int]]:
    """``count`` prompts of one of GROUPS; those of the first two have about ``context`` tokens."""
    if group == "documents":
        return documents(family, count, context)
    if group == "joined":
        pieces = iter([m["content"] for p in load_workload("mix") for m in p.messages] * count)
        return [joined(family, pieces, context) for _ in range(count)]
    return [family.encode(p.messages) for p in load_workload("mix", "test", limit=count)]


def documents(family, count: int, context: int) -> list[list[int]]:
    """The first ``context`` tokens of ``count`` parts of Python's language reference, no two of which overlap: plain
    text, no chat. Raises ValueError where the reference is not long enough."""
    from pydoc_data.topics import topics        # half a megabyte

    found = []
    for topic in TOPICS:
        ids = family.tokenizer(topics[topic])["input_ids"]
        found += [(start, ids[start:start + context]) for start in range(0, len(ids) - context + 1, context)]
    if len(found) < count:
        raise ValueError(f"Python's reference has {len(found)} documents of {context} tokens, not {count}")
    return [ids for _, ids in sorted(found, key=lambda part: part[0])[:count]]      # of all topics in turn


def joined(family, pieces, context: int) -> list[int]:
    """Ids of one prompt: numbered notes, as many as fit, and a question about them. ValueError where ``pieces`` end
    before."""
    notes: list[str] = []
    question = "Read these notes:\n\n{}\n\nWrite a short text that says what the notes are about."
    while True:
        more = notes + [f"Note {len(notes) + 1 + i}: {text}" for i, text in enumerate(islice(pieces, 4))]
        if len(more) == len(notes):
            raise ValueError(f"there are not enough texts to join for prompts of {context} tokens")
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
                         "held_out_tokens": log["held_out_tokens"], "published": ABLATION[rung][0],
                         "data": log["data"][:12]})
    if not rows:
        raise ValueError(f"--ladder {source}: no trained rung there; make them with python -m spin_core distill "
                         + " ".join(f"--drafter {rung_name(rung)}" for rung in LADDER))
    if len({row["steps"] for row in rows}) > 1 or len({row["data"] for row in rows}) > 1:
        raise ValueError(f"--ladder {source}: the rungs had different steps or data, and cannot be compared")
    return rows
