"""The drafter pool, drafter by drafter and workload by workload: how often is each right, and what does it cost?

The target answers the test split greedily; every drafter is then judged on that text. Greedy chains need no engine for
that (:mod:`spin_core.distill.evaluate`), so one pass gives the outcome at every gamma. What a drafted token and a
verification cost is measured on this machine, in isolation, at batch 1; speed-ups are predicted from both:

    speed-up = tokens / sum over the steps of (drafted * c + v(drafted)),

with c the drafter's pass and v(k) the target's pass over k + 1 rows, both in units of the target's one-row pass. This
is Leviathan et al.'s (arXiv 2211.17192) tau / (gamma c + 1) with measured chains and a measured v in place of 1.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch

from spin_core.bench import Bar, Report, positive
from spin_core.bench.products import interleaved
from spin_core.distill.corpus import Shard
from spin_core.distill.evaluate import MAX_GAMMA, Scores, score
from spin_core.distill.states import States, compute
from spin_core.draft import Drafter, DraftTable, FedModel, NgramDrafter
from spin_core.draft.pool import COMPOSED_NGRAM, build, layers_read
from spin_core.engine import Engine
from spin_core.files import check_writable
from spin_core.request import Request, SamplingParams
from spin_core.runtime import ModelRunner
from spin_core.select.recording import chains
from spin_core.simulate.acceptance import SHARES as PUBLISHED_SHARE
from spin_core.workloads import SETS as WORKLOADS

DESCRIPTION = "every drafter's acceptance, cost and predicted speed-up by workload, and who is best for whom"
# Where the answer is made of the prompt's own words.
REPEATING = ("rewrite", "extract", "translate")
FIGURE = "best_ssm_share"
# (drafted, accepted) of every verification of one answer
Chain = list[tuple[int, int]]


def add_arguments(parser) -> None:
    parser.add_argument("--limit", type=positive, help="prompts of each workload's test split (default all)")
    parser.add_argument("--max-new-tokens", type=positive, default=128)
    parser.add_argument("--repeats", type=positive, default=15, help="interleaved repeats of every timing (default 15)")
    parser.add_argument("--context", type=positive, default=192, help="cached tokens while timing (default 192)")
    parser.add_argument("--figures", metavar="DIR", help=f"save the figure {FIGURE} into this folder")


@dataclass
class Answers:
    """The target's greedy answers, and where each prompt is from."""

    shard: Shard
    states: States
    workloads: list[str]
    categories: list[str]


@dataclass
class Judged:
    """One drafter: per answer its alpha and agreement (means over tokens), its chains at each gamma, and which of their
    drafts were looked up."""

    alpha: list[float]
    agreement: list[float]
    chains: dict[int, list[Chain]]
    looked: dict[int, list[list[bool]]]


def run(args) -> Report:
    from spin_core import zoo

    if args.figures:
        check_writable(Path(args.figures, f"{FIGURE}.json"))
    family = zoo.load("smollm2")
    answers = answer(family, args.limit, args.max_new_tokens)
    names = [*family.drafters, "ngram", *(f"ngram+{name}" for name in family.drafters)]
    judged = {name: judge(family, name, answers) for name in names}
    costs, verify = measure_costs(family, args.context, args.repeats)
    report = summarise(judged, answers, costs, verify)
    report.notes.append(f"{len(answers.workloads)} prompts, at most {args.max_new_tokens} tokens each, greedy; costs "
                        f"at batch 1 with {args.context} cached tokens: v = " + ", ".join(f"{v:.2f}" for v in verify))
    if args.figures:
        save_figure(report, request_counts(answers), args.figures)
    return report


def answer(family, limit: int | None, max_new_tokens: int) -> Answers:
    """Let the target answer the test splits."""
    from spin_core.workloads import load_workload

    prompts = [p for name in WORKLOADS for p in load_workload(name, split="test", limit=limit)]
    engine = Engine(family, "none", max_batch=32, max_len=1024)
    requests = engine.generate([p.messages for p in prompts], SamplingParams(max_new_tokens=max_new_tokens))
    kept = [(p, r) for p, r in zip(prompts, requests) if r.output_ids]
    shard = Shard.build([r.prompt_ids for _, r in kept], [r.output_ids for _, r in kept], [0.0] * len(kept))
    return Answers(shard, compute(family.target, shard, family.vocab_size,
                                  layers=layers_read(family.drafters.values())), [p.workload for p, _ in kept],
                   [p.category for p, _ in kept])


def request_counts(answers: Answers) -> dict[str, int]:
    """How many requests each workload has, and the mix of them all."""
    return {**Counter(answers.workloads), "mix": len(answers.workloads)}


def is_lookup(family, name: str) -> bool:
    """Whether a drafter looks its drafts up: one-hot, and a whole draft for the price of one token."""
    return all(part == "ngram" or isinstance(family.drafters.get(part), DraftTable) for part in name.split("+"))


def judge(family, name: str, answers: Answers, scores: list[Scores] | None = None) -> Judged:
    """Alpha, agreement and chains of one drafter on the answers. A composed name is judged too. ``scores``: of a
    model, if they are known already."""
    views = views_of(family, name, answers) if scores is None else model_views(scores)
    steps = {g: [_steps(view, g) for view in views] for g in range(1, MAX_GAMMA + 1)}
    return Judged([_mean(v.overlap) for v in views], [_mean(v.hits) for v in views],
                  {g: [[(d, a) for d, a, _ in s] for s in chains] for g, chains in steps.items()},
                  {g: [[looked for _, _, looked in s] for s in chains] for g, chains in steps.items()})


@dataclass
class View:
    """What a drafter would do before each token of one answer: how many tokens it drafts at most, how many of
    those are right, whether it looks them up; its overlap with the target's law, and whether its first one is right."""

    drafted: list[int]
    accepted: list[int]
    looked: list[bool]
    overlap: list[float]
    hits: list[bool]


def views_of(family, name: str, answers: Answers) -> list[View]:
    """What that drafter, composed or not, would do before each token of every answer."""
    first, composed, rest = name.partition("+")
    if composed:        # the lookup's where it finds something, the other's elsewhere
        lookup = NgramDrafter(*COMPOSED_NGRAM) if first == "ngram" else build(first, family, 1, 1, None)
        return [View(*([a if found else b for found, a, b in zip(over.drafted, above, below)]
                        for above, below in zip(vars(over).values(), vars(under).values())))
                for over, under in zip(lookup_views(family, lookup, answers), views_of(family, rest, answers))]
    if is_lookup(family, name):
        return lookup_views(family, build(name, family, 1, 1, None), answers)
    source = family.drafters[name]
    return model_views(score(source.model, source.ids, family.target, answers.shard, answers.states))


def model_views(scores: list[Scores]) -> list[View]:
    """:func:`views_of` for a model with these scores."""
    out = []
    for s in scores:
        count, accepted = len(s.overlap), chains(s.hits).tolist()
        out.append(View([0 if s.waits and t == 0 else MAX_GAMMA for t in range(count)], accepted, [False] * count,
                         s.overlap, s.hits[0]))
    return out


def lookup_views(family, drafter: Drafter, answers: Answers) -> list[View]:
    """:func:`views_of` for a drafter that looks up."""
    head = family.target.get_output_embeddings().weight.detach()
    out = []
    for i in range(len(answers.workloads)):
        prompt, text = answers.shard.sequence(i)
        start = int(answers.shard.starts[i]) + len(prompt) - 1
        guesses = proposals(prompt, text, MAX_GAMMA, drafter)
        drafter.rollback(0, 0)
        accepted = [_agree(guess, text[at:]) for at, guess in enumerate(guesses)]
        p = [float((answers.states.hidden[start + t].float() @ head[guess[0]] - answers.states.log_z[start + t]).exp())
             if guess else 0.0 for t, guess in enumerate(guesses)]
        out.append(View(list(map(len, guesses)), accepted, [True] * len(text), p, [a > 0 for a in accepted]))
    return out


def _agree(guess: list[int], text: list[int]) -> int:
    """How many tokens of a guess are those of the text."""
    return next((k for k, (g, t) in enumerate(zip(guess, text)) if g != t), min(len(guess), len(text)))


def _steps(view: View, gamma: int) -> list[tuple[int, int, bool]]:
    """(drafted, accepted, looked up) of every verification of an answer."""
    at, out = 0, []
    while at < len(view.drafted):
        drafted = min(gamma, view.drafted[at], len(view.drafted) - at - 1)
        accepted = min(drafted, view.accepted[at])
        out.append((drafted, accepted, view.looked[at]))
        at += accepted + 1
    return out


def proposals(prompt: list[int], text: list[int], count: int, drafter: Drafter | None = None) -> list[list[int]]:
    """What a drafter that looks up, by default prompt lookup, proposes before each token of the answer."""
    drafter, request = drafter or NgramDrafter(), Request(prompt, SamplingParams(), slot=0)
    out = []
    for token in text:
        out.append(drafter.propose([request], [count]).tokens.tolist())
        request.output_ids.append(token)
    return out


def measure_costs(family, context: int, repeats: int) -> tuple[dict[str, float], list[float]]:
    """c of every drafter, and v(k) for k = 0 to MAX_GAMMA drafted tokens, in units of the target's one-row pass."""
    tokens = torch.arange(context) % family.vocab_size
    target = ModelRunner(family.target, 1, context + MAX_GAMMA + 2, family.vocab_size)
    target.forward([0], [context], tokens, [0])

    def rows(count: int) -> None:
        target.forward([0], [count], tokens[:count], list(range(count)))
        target.cache.truncate(0, context)

    work = {("rows", k): (lambda k=k: rows(k + 1)) for k in range(MAX_GAMMA + 1)}
    for name, source in family.drafters.items():
        if isinstance(source, DraftTable):
            continue
        fed = isinstance(source.model, FedModel)
        runner = ModelRunner(source.model, 1, context + 2, keep_states=fed)
        runner.forward([0], [context], tokens, [0])
        extra = {"states": torch.zeros(1, 1, family.target.config.hidden_size)} if fed else {}

        def step(runner=runner, extra=extra) -> None:
            runner.forward([0], [1], tokens[:1], [0], **extra).argmax(-1).tolist()
            runner.cache.truncate(0, context)

        work["draft", name] = step
    request = Request(tokens.tolist(), SamplingParams(), slot=0)
    for name in filter(lambda n: is_lookup(family, n), [*family.drafters, "ngram"]):
        lookup = build(name, family, 1, 1, None)
        lookup.propose([request], [4])
        work["draft", name] = lambda lookup=lookup: lookup.propose([request], [4])
    with torch.inference_mode():
        times = interleaved(work, repeats)
    one = times["rows", 0]
    return ({name: t / one for (kind, name), t in times.items() if kind == "draft"},
            [times["rows", k] / one for k in range(MAX_GAMMA + 1)])


def seconds(chain: Chain, cost: float, verify: list[float], looked: bool | list[bool] = False,
            lookup_cost: float | None = None) -> float:
    """What an answer takes, in one-row passes of the target. ``looked``: which drafts (or all) were looked up. Such a
    draft costs ``lookup_cost`` (None: ``cost``) however long it is, any other ``cost`` per token."""
    looked = [looked] * len(chain) if isinstance(looked, bool) else looked
    found = cost if lookup_cost is None else lookup_cost
    return sum((found if up else drafted * cost) + verify[drafted] for (drafted, _), up in zip(chain, looked))


def tokens(chain: Chain) -> int:
    """What an answer's verifications emit."""
    return sum(accepted + 1 for _, accepted in chain)


def summarise(judged: dict[str, Judged], answers: Answers, costs: dict[str, float], verify: list[float]) -> Report:
    """One row per drafter and workload, "mix" last, and the bars."""
    everyone = range(len(answers.workloads))
    groups = {name: [i for i in everyone if answers.workloads[i] == name] for name in dict.fromkeys(answers.workloads)}
    groups["mix"] = list(everyone)
    spent = {name: {g: [seconds(c, _cost(costs, name), verify, up, costs.get(name.split("+")[0]))
                        for c, up in zip(chains, j.looked[g])] for g, chains in j.chains.items()}
             for name, j in judged.items()}
    lengths = [tokens(c) for c in next(iter(judged.values())).chains[1]]

    def speed(name: str, gamma: int, rows: list[int]) -> float:
        return sum(lengths[i] for i in rows) / sum(spent[name][gamma][i] for i in rows)

    # a request is served with its drafter's best gamma on the mix, as a fixed setting would be
    setting = {name: max(spent[name], key=lambda g: speed(name, g, groups["mix"])) for name in judged}
    alone = [name for name in judged if "+" not in name]        # who is best is asked of drafters, not of compositions
    best = [max(alone, key=lambda n: lengths[i] / spent[n][setting[n]][i]) for i in everyone]
    rows_ = []
    for workload, members in groups.items():
        share = defaultdict(float)
        for i in members:
            share[best[i]] += 1 / len(members)
        for name, j in judged.items():
            gamma = max(spent[name], key=lambda g: speed(name, g, members))
            taus = {f"tau{g}": _tau(j.chains[g], members) for g in j.chains}
            rows_.append({"workload": workload, "drafter": name, "alpha": _mean([j.alpha[i] for i in members]),
                          "agreement": _mean([j.agreement[i] for i in members]), **taus, "c": _cost(costs, name),
                          "best_gamma": gamma, "speed_up": speed(name, gamma, members),
                          "best_share": share[name] if name in alone else None})
    mix = {row["drafter"]: row for row in rows_ if row["workload"] == "mix"}
    return Report("drafters", rows_, _bars(mix, judged, answers), [
        "tau = tokens per verification; best_share: requests for which the drafter has the highest predicted speed, "
        "each drafter at its best gamma on the mix (" + ", ".join(f"{n} {g}" for n, g in setting.items()) + ")"])


def _cost(costs: dict[str, float], name: str) -> float:
    """c of a drafter; of a composition that of what drafts where nothing is found."""
    return costs[name.split("+")[-1]]


def _bars(mix: dict[str, dict], judged: dict[str, Judged], answers: Answers) -> list[Bar]:
    models = sorted((n for n in mix if not all(up for ups in judged[n].looked[4] for up in ups) and "+" not in n),
                    key=lambda n: mix[n]["tau4"])
    repeating = [i for i, c in enumerate(answers.categories) if c in REPEATING]
    shares = sorted((row["best_share"] for row in mix.values() if row["best_share"] is not None), reverse=True)
    tau = {n: mix[n]["tau4"] for n in models}
    return [Bar("tokens per verification at gamma 4, weakest model drafter", tau[models[0]], ">= 1.75"),
            Bar("tokens per verification at gamma 4, middle model drafter", tau[models[len(models) // 2]], ">= 2.1"),
            Bar("tokens per verification at gamma 4, strongest model drafter", tau[models[-1]], ">= 2.5"),
            Bar(f"tokens per verification at gamma 4, ngram on {', '.join(REPEATING)}",
                _tau(judged["ngram"].chains[4], repeating) if repeating else None, ">= 1.5"),
            Bar("largest share of requests with one best drafter", shares[0], "<= 0.7"),
            Bar("share of the third most frequent best drafter", shares[2] if len(shares) > 2 else None, ">= 0.05")]


def _tau(chains: list[Chain], members: list[int]) -> float:
    return sum(tokens(chains[i]) for i in members) / sum(len(chains[i]) for i in members)


def _mean(values: list) -> float:
    return sum(values) / max(1, len(values))


def save_figure(report: Report, counts: dict[str, int], folder: str) -> None:
    """``best_ssm_share``: for which share of the requests is each drafter best? By workload, of ``counts`` requests."""
    from spin_core import figures
    from spin_core.plots.drafters import best_share

    share: dict[str, dict[str, float]] = {}
    for row in report.rows:
        if row["best_share"] is not None:
            share.setdefault(row["workload"], {})[row["drafter"]] = row["best_share"]
    series = [{"label": name, "kind": "measured", "source": "python -m spin_core bench drafters", "x": list(share),
               "y": [values[name] for values in share.values()]} for name in share["mix"]]
    series.append({"label": "SPIN: LLaMA 265M, one of five SSMs, is best", "kind": "published",
                   "source": "SPIN, motivation figure", "x": list(PUBLISHED_SHARE),
                   "y": list(PUBLISHED_SHARE.values())})
    figures.save(FIGURE, best_share(share, counts, PUBLISHED_SHARE), series, directory=folder,
                 caption="For which share of the requests each drafter is the fastest, by workload.",
                 notes="Speeds are predicted from measured chains and measured costs at batch 1, greedy.")
