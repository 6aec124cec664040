"""Token trees on our family: SpecInfer's tables 1 to 3 and its latency map beside the published values, and what
merging two drafters' trees, Sequoia's shapes and wider expansions bring.

Published values are of their models and data; what can be compared is the shape of each table. Tokens per verification
are counts and do not depend on the machine; milliseconds do.
"""

import argparse
from functools import cache
from itertools import product

from spin_core import zoo
from spin_core.lab.bench import Bar, Report, positive
from spin_core.lab.bench.answers import pool
from spin_core.lab.simulate.best_shape import best_shape
from spin_core.engine import Engine
from spin_core.lab.lessons.l8_token_trees import measure as trees
from spin_core.lab.lessons.l6_verify_kernel import rules as verify_rules
from spin_core.request import Request, SamplingParams
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
    trial = Trial(engine, prompts, args)
    for part in PARTS:
        if part in args.only:
            getattr(trial, part)()
    return trial.report


class Trial:
    """A method for each part, which adds its rows and bars to ``report``. What two parts need is measured once."""

    def __init__(self, engine: Engine, prompts: dict[str, list], args) -> None:
        self.engine, self.prompts, self.args = engine, prompts, args
        self.first, self.second = args.drafters
        self.settings = {"greedy": SamplingParams(max_new_tokens=args.max_new_tokens),
                         "sampled": SamplingParams(temperature=1.0, max_new_tokens=args.max_new_tokens, seed=0)}
        self.mix = [prompt for each in zip(*prompts.values()) for prompt in each]
        self.report = Report("trees", [], notes=[
            f"{len(self.mix)} prompts of {len(prompts)} workloads, {args.max_new_tokens} tokens; sampled: temperature "
            "1", "published: SpecInfer (arXiv 2305.09781), its models and data; tau = tokens per verification"])

    def row(self, part: str, decoding: str, drafter: str, at, measured: float | trees.Estimate,
            published: float | None = None) -> None:
        interval = {"low": measured.low, "high": measured.high} if isinstance(measured, trees.Estimate) else {}
        self.report.rows.append({"part": part, "decoding": decoding, "drafter": drafter, "at": at,
                                 "measured": getattr(measured, "value", measured), "published": published} | interval)

    def bar(self, name: str, value: float, target: str) -> None:
        self.report.bars.append(Bar(name, value, target))

    @cache
    def tau(self, tree: str, decoding: str, workload: str | None = None) -> trees.Estimate:
        """Tokens per verification with the drafter "tree:..." on all prompts, or on a workload's."""
        which = self.mix if workload is None else self.prompts[workload]
        return trees.tokens_per_verification(
            trees.verifications(self.engine, f"tree:{tree}", which, self.settings[decoding]))

    @cache
    def texts(self, decoding: str) -> list[Request]:
        """The target's answers."""
        seeded = [self.settings[decoding].with_(seed=seed) for seed in range(len(self.mix))]
        return self.engine.generate(self.mix, seeded, drafter="ngram")

    def match_rates(self, drafter: str, decoding: str, most: int = 5) -> list[trees.Estimate]:
        return trees.match_rates([trees.ranks(self.engine, drafter, [text]) for text in self.texts(decoding)], most)

    def distance(self) -> None:
        rules = verify_rules.LOSSLESS | verify_rules.BIASED
        found = {name: verify_rules.measure(rule)[0] for name, rule in rules.items()}
        for name, distance in found.items():
            self.row("distance from p", "sampled", "six tokens", name, distance)
        self.bar("distance from p of the allowed child rules, largest",
                 max(found[name] for name in verify_rules.LOSSLESS), "<= 1e-9")
        self.bar("distance from p of the refused child rules against an earlier enumeration, largest difference",
                 max(abs(found[name] - known) for name, known in verify_rules.DISTANCES.items()), "<= 0.005")
        self.report.notes.append("distance: the earlier enumeration's p and q were not kept; ours reproduce it")

    def match(self) -> None:
        for decoding, name in product(self.settings, self.args.drafters):
            rates = self.match_rates(name, decoding)
            for k, (rate, theirs) in enumerate(zip(rates, trees.PUBLISHED_MATCH[decoding]), 1):
                self.row("1: token among first k", decoding, name, k, rate, theirs)

    def width(self) -> None:
        for decoding, width in product(self.settings, self.args.width):
            self.row("2: tau by width", decoding, self.first, width,
                     self.tau(f"{self.first}:{trees.paper_shape(width)}", decoding),
                     trees.PUBLISHED_TAU[decoding].get(width))

    def rules(self) -> None:
        widest = f"{self.first}:{trees.paper_shape(max(self.args.width))}"      # drawn without replacement
        for drawing, label in ((":independent", "multi-step"), ("", "without replacement"),
                               (":top_k", "top-k, one-hot"), (":naive", "naive")):
            self.row("3: tau by rule", "sampled", self.first, label, self.tau(widest + drawing, "sampled"),
                     trees.PUBLISHED_RULES.get(label))

    def merge(self) -> None:
        gains, both = [], f"{self.first},{self.second}"
        for workload in self.prompts:
            found = {name: self.tau(f"{name}:2,1,1", "greedy", workload) for name in (self.first, self.second, both)}
            for name, value in found.items():
                self.row("merged trees 2,1,1", "greedy", name, workload, value)
            gains.append(found[both].value / max(found[self.first].value, found[self.second].value))
        self.bar("tau of the merged tree over the better of its drafters, worst workload", min(gains), ">= 1")

    def shape(self) -> None:
        single = Engine(self.engine.family, "none", max_batch=1)
        few = {shape: trees.tokens_per_verification(trees.verifications(
                   single, f"tree:{self.first}:{shape}", self.mix[:4], self.settings["greedy"]))
               for shape in ("1,1,1", "2,1,1")}
        for shape, value in few.items():
            self.row("batch 1, equal depth", "greedy", self.first, shape, value)
        self.bar("tau of the expansion 2,1,1 over the chain of equal depth, batch 1",
                 few["2,1,1"].value / few["1,1,1"].value, ">= 1.0001")
        rates = trees.by_rank([share.value for share in self.match_rates(self.first, "greedy", most=8)])
        for nodes in (6, 14):
            shape, expected = best_shape(rates, nodes, 6)
            self.row(f"best shape of {nodes} nodes", "greedy", self.first, f"{shape}, expected", expected)
            self.row(f"best shape of {nodes} nodes", "greedy", self.first, f"{shape}, measured",
                     self.tau(f"{self.first}:{shape}", "greedy"))
        self.row("best shape of 6 nodes", "greedy", self.first, "2,1,1, measured",
                 self.tau(f"{self.first}:2,1,1", "greedy"))

    def map(self) -> None:
        fastest = {}
        for batch in self.args.batch:
            served = Engine(self.engine.family, "none", max_batch=batch)
            short = self.settings["greedy"].with_(max_new_tokens=min(24, self.args.max_new_tokens), stop_ids=())
            cost = {}
            for width in self.args.width:
                tree = f"{self.first}:{trees.paper_shape(width)}"
                runs = trees.verifications(served, f"tree:{tree}", (self.mix * batch)[:batch], short)
                cost[width] = trees.step_seconds(runs, batch) * 1000 / self.tau(tree, "greedy").value
                self.row("map: ms per token", "greedy", self.first, f"batch {batch}, width {width}", cost[width])
            fastest[batch] = min(cost, key=cost.get)
        self.report.notes.append("fastest width by batch: " + ", ".join(f"{b}: {w}" for b, w in fastest.items()) +
                                 "; published: wide trees stop paying from batch 4 on")
