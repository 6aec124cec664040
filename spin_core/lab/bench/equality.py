"""Is our greedy text that of transformers' generate? Where it is not, how near was the tie?

In exact arithmetic the two are equal. In fp32 the products of a speculative step have other shapes than those of
plain decoding, so logits differ in their last digits, and where two tokens are nearly tied the other one may win.
Each difference is shown at its first token with the gap between the two candidates' logits.
"""

import torch

from spin_core import zoo
from spin_core.lab.bench import Bar, Report, at_least, positive
from spin_core.lab.bench.contenders import generate
from spin_core.engine import Engine
from spin_core.request import SamplingParams
from spin_core.workloads import load_workload

DESCRIPTION = "greedy texts against transformers' generate, with the logit gap where they part"
NEAR_TIE = 1e-3     # logits; rounding in fp32 moves them by about 1e-5, a wrong token would differ by far more


def add_arguments(parser) -> None:
    parser.add_argument("--prompts", type=positive, default=64)
    parser.add_argument("--max-new-tokens", type=positive, default=48)
    parser.add_argument("--drafter", help="one for all (default: the engine's selection)")
    parser.add_argument("--gamma", type=at_least(0), help="default: the engine's")
    parser.add_argument("--batch", type=positive, default=8)
    parser.add_argument("--workload", default="mix")
    parser.add_argument("--device", default="cpu")


def run(args) -> Report:
    family = zoo.load("smollm2", device=args.device)
    prompts = load_workload(args.workload, "test", limit=args.prompts)
    engine = Engine(family, args.drafter, args.gamma, max_batch=args.batch)
    rows = compare(engine, [family.encode(p.messages) for p in prompts], args.max_new_tokens)
    gaps = [row["logit_gap"] for row in rows]
    return Report(
        "equality",
        [row | {"prompt": prompts.prompts[row["prompt"]].id} for row in rows],
        [Bar("largest logit gap where a text differs", max(gaps, default=0.0), f"<= {NEAR_TIE}")],
        [f"{len(prompts) - len(rows)} of {len(prompts)} texts of up to {args.max_new_tokens} tokens are equal; drafter "
         f"{engine.drafter or 'chosen by SPIN'}, batch {args.batch}"])


def compare(engine: Engine, prompts: list[list[int]], max_new_tokens: int) -> list[dict]:
    """Decode all ``prompts`` greedily both ways; one row for each text that differs, at its first difference."""
    family, rows = engine.family, []
    requests = engine.generate(prompts, SamplingParams(max_new_tokens=max_new_tokens))
    texts = generate(family, family.target, 1, max_new_tokens)(prompts)
    for index, (prompt, request, theirs) in enumerate(zip(prompts, requests, texts)):
        if theirs == request.output_ids:
            continue
        at = next((i for i, (a, b) in enumerate(zip(theirs, request.output_ids)) if a != b), None)
        row = {"prompt": index, "token": at, "generate": None, "ours": None, "logit_gap": float("inf")}
        if at is not None:              # else one text is the beginning of the other: no tie explains that
            with torch.inference_mode():
                context = torch.tensor([prompt + theirs[:at]], device=family.device)
                logits = family.target(input_ids=context).logits[0, -1].float()
            row |= {"generate": theirs[at], "ours": request.output_ids[at],
                    "logit_gap": abs(float(logits[theirs[at]] - logits[request.output_ids[at]]))}
        rows.append(row)
    return rows
