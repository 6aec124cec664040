"""The race of lesson 1: plain decoding, one drafter, and SPIN write the same answer, step by step in turns.

The lanes take turns after every step, so a slow moment of the machine hits all alike. Each lane's clock is the sum of
its own steps. The drafter of lane 2 and the pool of SPIN have read the prompt, which is not timed; SPIN has served a
few other prompts before, as a running system has.
"""

import re
from collections.abc import Callable, Sequence

from spin_core import zoo
from spin_core.engine import Engine, Prompt
from spin_core.lab.bench import Report, positive
from spin_core.request import SamplingParams
from spin_core.workloads import load_workload

DESCRIPTION = "one prompt by plain decoding, by one drafter and by SPIN, with the time of every step (lesson 1's race)"
PLAIN, ONE, SPIN = "plain decoding", "one drafter", "SPIN"
PROMPT = ("instructions", "instructions-078")       # the prompt of lesson 1
WARM = 4                                            # prompts that SPIN serves before


def add_arguments(parser) -> None:
    parser.add_argument("--workload", default=PROMPT[0])
    parser.add_argument("--prompt", default=PROMPT[1], help=f"its id (default {PROMPT[1]})")
    parser.add_argument("--drafter", help="of the second lane (default: the family's first)")
    parser.add_argument("--tokens", type=positive, default=48)


def run(args) -> Report:
    asked, others = prompts(args.workload, args.prompt)
    rows = record(zoo.load("smollm2"), asked.messages, others, drafter=args.drafter, tokens=args.tokens)
    return Report("race", rows, notes=[f"prompt {args.prompt}: {asked.text}"])


def prompt_of(notes: Sequence[str]) -> str:
    """The text of the prompt, from the notes that :func:`run` writes; empty where they name none."""
    return next((found[1] for note in notes if (found := re.fullmatch(r"prompt \S+: (.+)", note, re.S))), "")


def prompts(workload: str = PROMPT[0], asked: str = PROMPT[1]) -> tuple:
    """The prompt of that id, and the messages of a few others. Raises ValueError for an unknown id."""
    some = load_workload(workload, split="test")
    found = next((p for p in some if p.id == asked), None)
    if found is None:
        raise ValueError(f"race: workload {workload!r} has no test prompt {asked!r}")
    return found, [p.messages for p in some if p.id != asked][:WARM]


def record(family, prompt: Prompt, others: Sequence[Prompt], *, drafter: str | None = None, tokens: int = 48,
           say: Callable[[str], bool | None] = lambda what: None) -> list[dict]:
    """A row for each step of each lane. SPIN has served ``others`` before, the other lanes the first of them.

    ``say`` is called with what happens; where it returns True the race ends early.
    """
    params = SamplingParams(max_new_tokens=tokens)
    drafter = drafter or next(iter(family.drafters))
    length = min(1024, family.max_context)
    engines = {PLAIN: Engine(family, "none", max_batch=1, max_len=length),
               ONE: Engine(family, drafter, max_batch=1, max_len=length),
               SPIN: Engine(family, max_batch=1, max_len=length)}
    for name, engine in engines.items():
        served = others if name == SPIN else others[:1]
        for number, other in enumerate(served):
            if say(f"warming up {name}, {number + 1} of {len(served)}"):
                return []
            engine.generate([other], params.with_(max_new_tokens=min(tokens, 24) if name == SPIN else 4))
    requests = {name: engine.submit(prompt, params) for name, engine in engines.items()}
    rows = []
    while any(not r.finished for r in requests.values()):
        for name, request in requests.items():
            if request.finished:
                continue
            for event in engines[name].step():
                if event.kind == "step" and event.request == request.id and event.emitted:
                    rows.append(_row(name, event, family.decode))
        if say(", ".join(f"{name} {len(r.output_ids)}" for name, r in requests.items()) + " tokens"):
            break
    for engine in engines.values():
        engine.close()
    return rows


def _row(lane: str, event, decode) -> dict:
    """A step; ``accepted`` counts what became part of the text."""
    return {"lane": lane, "drafter": event.drafter or "none", "seconds": event.step_seconds,
            "draft_seconds": event.draft_seconds, "drafted": [decode([t]) for t in event.drafted],
            "accepted": min(event.accepted, len(event.emitted)), "emitted": [decode([t]) for t in event.emitted]}
