"""Token trees on our family: SpecInfer's tables 1 to 3 and its latency map beside the published values, and what
merging two drafters' trees, Sequoia's shapes and wider expansions bring.

Published values are of their models and data; what can be compared is the shape of each table. Tokens per verification
are counts and do not depend on the machine; milliseconds do.
"""

from __future__ import annotations

import argparse

from spin_core import zoo
from spin_core.lab.bench import Bar, Report, positive
from spin_core.lab.bench.answers import pool
from spin_core.lab.simulate.best_shape import best_shape
from spin_core.engine import Engine
from spin_core.lab.lessons.l8_token_trees import measure as trees
from spin_core.lab.lessons.l6_verify_kernel import rules as verify_rules
from spin_core.request import SamplingParams
from spin_core.workloads import SETS as WORKLOADS, load_workload

DESCRIPTION = "token trees: SpecInfer's tables beside ours, width by batch, merged trees, Sequoia's shapes"
PARTS = ("distance", "match", "width", "rules", "merge", "shape", "map")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompts", type=positive, default=3, help="prompts of each workload's test split (default 3)")
    parser.add_argument("--max-new-tokens", type=positive, default=24)
    parser.add_argument("--drafters", nargs=2, metavar="NAME",
                        help="model drafters: the first grows trees, both are merged (default: the family's first two)")
    parser.add_argument("--width", type=positive, nargs="+", default=[1, 3, 5])
    parser.add_argument("--batch", type=positive, nargs="+", default=[1, 2, 4, 8], help="batches of the latency map")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run (default: all)")
    parser.add_argument("--device", default="cpu")


def run(args) -> Report:
    family = zoo.load("smollm2", device=args.device)
    args.drafters = args.drafters or pool(family)[0][:2]
    prompts = {name: [family.encode(p.messages) for p in load_workload(name, "test", limit=args.prompts)]
               for name in WORKLOADS}
    engine = Engine(family, "none", max_batch=8)
    return measure(engine, prompts, args)


def measure(engine: Engine, prompts: dict[str, list], args) -> Report:
    """The parts of ``args.only`` with an idle ``engine``; ``prompts`` by workload."""
    settings = {"greedy": SamplingParams(max_new_tokens=args.max_new_tokens),
                     "sampled": SamplingParams(temperature=1.0, max_new_tokens=args.max_new_tokens, seed=0)}
    mix = [prompt for each in zip(*prompts.values()) for prompt in each]
    report = Report("trees", [], notes=[
        f"{len(mix)} prompts of {len(prompts)} workloads, {args.max_new_tokens} tokens; sampled: temperature 1",
        "published: SpecInfer (arXiv 2305.09781), its models and data; tau = tokens per verification"])

    def row(part: str, decoding: str, drafter: str, at, measured: float | trees.Estimate,
            published: float | None = None) -> None:
        interval = {"low": measured.low, "high": measured.high} if isinstance(measured, trees.Estimate) else {}
        report.rows.append({"part": part, "decoding": decoding, "drafter": drafter, "at": at,
                            "measured": getattr(measured, "value", measured), "published": published} | interval)

    def tau(name: str, decoding: str, which: list | None = None) -> trees.Estimate:
        which = mix if which is None else which
        return trees.tokens_per_verification(trees.verifications(engine, name, which, settings[decoding]))

    texts = {}
    if {"match", "shape"} & set(args.only):
        for decoding in settings:
            seeded = [settings[decoding].with_(seed=seed) for seed in range(len(mix))]
            texts[decoding] = engine.generate(mix, seeded, drafter="ngram")
    if "match" in args.only:
        for decoding in settings:
            for name in args.drafters:
                rates = trees.match_rates([trees.ranks(engine, name, [text]) for text in texts[decoding]])
                for k, (rate, theirs) in enumerate(zip(rates, trees.PUBLISHED_MATCH[decoding]), 1):
                    row("1: token among first k", decoding, name, k, rate, theirs)

    if "distance" in args.only:
        rules = verify_rules.LOSSLESS | verify_rules.BIASED
        found = {name: verify_rules.measure(rule)[0] for name, rule in rules.items()}
        for name, distance in found.items():
            row("distance from p", "sampled", "six tokens", name, distance)
        report.bars += [Bar("distance from p of the allowed child rules, largest",
                            max(found[name] for name in verify_rules.LOSSLESS), "<= 1e-9"),
                        Bar("distance from p of the refused child rules against an earlier enumeration, "
                            "largest difference",
                            max(abs(found[name] - known) for name, known in verify_rules.DISTANCES.items()),
                            "<= 0.005")]
        report.notes.append("distance: the earlier enumeration's p and q were not kept; ours reproduce it")

    first, second = args.drafters
    by_width: dict[int, float] = {}
    widest: trees.Estimate | None = None             # sampled: a row of tables 2 and 3
    if {"width", "map"} & set(args.only):
        for decoding in settings if "width" in args.only else ["greedy"]:
            for width in args.width:
                found = tau(f"tree:{first}:{trees.paper_shape(width)}", decoding)
                if decoding == "greedy":
                    by_width[width] = found.value
                elif width == max(args.width):
                    widest = found
                row("2: tau by width", decoding, first, width, found, trees.PUBLISHED_TAU[decoding].get(width))
    if "rules" in args.only:
        shape = trees.paper_shape(max(args.width))
        for drawing, label in (("independent", "multi-step"), ("without_replacement", "without replacement"),
                               ("top_k", "top-k, one-hot"), ("naive", "naive")):
            found = widest if widest and drawing == "without_replacement" else \
                tau(f"tree:{first}:{shape}:{drawing}", "sampled")
            row("3: tau by rule", "sampled", first, label, found, trees.PUBLISHED_RULES.get(label))
    if "merge" in args.only:
        gains = []
        for workload, which in prompts.items():
            found = {name: tau(f"tree:{name}:2,1,1", "greedy", which)
                     for name in (first, second, f"{first},{second}")}
            for name, value in found.items():
                row("merged trees 2,1,1", "greedy", name, workload, value)
            gains.append(found[f"{first},{second}"].value / max(found[first].value, found[second].value))
        report.bars.append(Bar("tau of the merged tree over the better of its drafters, worst workload", min(gains),
                               ">= 1"))
    if "shape" in args.only:
        single = Engine(engine.family, "none", max_batch=1)
        few = {shape: trees.tokens_per_verification(
                   trees.verifications(single, f"tree:{first}:{shape}", mix[:4], settings["greedy"]))
               for shape in ("1,1,1", "2,1,1")}
        for shape, value in few.items():
            row("batch 1, equal depth", "greedy", first, shape, value)
        report.bars.append(Bar("tau of the expansion 2,1,1 over the chain of equal depth, batch 1",
                               few["2,1,1"].value / few["1,1,1"].value, ">= 1.0001"))
        first_k = trees.match_rates([trees.ranks(engine, first, texts["greedy"])], most=8)
        rates = trees.by_rank([share.value for share in first_k])
        for nodes in (6, 14):
            shape, expected = best_shape(rates, nodes, 6)
            row(f"best shape of {nodes} nodes", "greedy", first, f"{shape}, expected", expected)
            row(f"best shape of {nodes} nodes", "greedy", first, f"{shape}, measured",
                tau(f"tree:{first}:{shape}", "greedy"))
        row("best shape of 6 nodes", "greedy", first, "2,1,1, measured", tau(f"tree:{first}:2,1,1", "greedy"))
    if "map" in args.only:
        fastest = {}
        for batch in args.batch:
            served = Engine(engine.family, "none", max_batch=batch)
            short = settings["greedy"].with_(max_new_tokens=min(24, args.max_new_tokens), stop_ids=())
            cost = {}
            for width in args.width:
                name = f"tree:{first}:{trees.paper_shape(width)}"
                runs = trees.verifications(served, name, (mix * batch)[:batch], short)
                cost[width] = trees.step_seconds(runs, batch) * 1000 / by_width[width]
                row("map: ms per token", "greedy", first, f"batch {batch}, width {width}", cost[width])
            fastest[batch] = min(cost, key=cost.get)
        report.notes.append("fastest width by batch: " + ", ".join(f"{b}: {w}" for b, w in fastest.items()) +
                            "; published: wide trees stop paying from batch 4 on")
    return report
