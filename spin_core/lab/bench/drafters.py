"""The drafter pool, drafter by drafter and workload by workload: how often is each right, and what does it cost?

The target answers the test split greedily; every drafter is compared with that text at every gamma (:mod:`.answers`).
What a drafted token and a verification cost is measured on this machine, in isolation, at batch 1. Speed-ups are
predicted from both:

    speed-up = tokens / sum over the steps of (drafted * c + v(drafted)),

with c the drafter's pass and v(k) the target's pass over k + 1 rows, both in units of the target's one-row pass. This
is Leviathan et al.'s (arXiv 2211.17192) tau / (gamma c + 1) with measured chains and a measured v in place of 1.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from spin_core import zoo
from spin_core.lab.bench import Bar, Report, positive
from spin_core.lab.bench.answers import Answers, View, answer, pool, views_of
from spin_core.lab.bench.timing import timings
from spin_core.lab.distill.evaluate import MAX_GAMMA, Scores, score
from spin_core.lab.distill.states import States
from spin_core.lab.simulate import acceptance
from spin_core.lab.simulate.recording import verifications
from spin_core.zoo.fed import FedModel

DESCRIPTION = "every drafter's acceptance, cost and predicted speed-up by workload, and which is best for how many"
# Where the answer is made of the prompt's own words.
REPEATING = ("rewrite", "extract", "translate")
PUBLISHED_SHARE = acceptance.SHARES
BY_PLACE = "drafters by place"      # the section of the report's last rows
# (drafted, accepted) of every verification of one answer
Chain = list[tuple[int, int]]


def add_arguments(parser) -> None:
    parser.add_argument("--limit", type=positive, help="prompts of each workload's test split (default all)")
    parser.add_argument("--workload", type=Path, metavar="FILE",
                        help="prompts of your own instead, in a published benchmark's format: question files of "
                             "MT-bench and Spec-Bench (JSON lines with `turns`), Alpaca, ShareGPT, or `prompt`")
    parser.add_argument("--turns", type=positive, default=1, help="of each conversation (default 1; MT-bench has 2)")
    parser.add_argument("--by", choices=("workload", "category", "kind"),
                        help="what the rows are grouped by (default: workload, of a FILE category)")
    parser.add_argument("--max-new-tokens", type=positive, default=128)
    parser.add_argument("--repeats", type=positive, default=15, help="interleaved repeats of every timing (default 15)")
    parser.add_argument("--context", type=positive, default=192, help="cached tokens while timing (default 192)")


@dataclass
class Judged:
    """One drafter: per answer its alpha and agreement (means over tokens), its chains at each gamma, and which of their
    drafts were looked up."""

    alpha: list[float]
    agreement: list[float]
    chains: dict[int, list[Chain]]
    looked: dict[int, list[list[bool]]]


def run(args) -> Report:
    family = zoo.load("smollm2")
    answers = answer(family, args.limit, args.max_new_tokens, args.workload, args.turns)
    by = args.by or ("category" if args.workload else "workload")
    answers.workloads = {"workload": answers.workloads, "category": answers.categories, "kind": answers.kinds}[by]
    names = [*family.drafters, "ngram", *(f"ngram+{name}" for name in family.drafters)]
    scores = model_scores(family, answers)
    judged = {name: judge(family, name, answers, scores) for name in names}
    costs, verify = measure_costs(family, args.context, args.repeats)
    report = summarise(judged, answers, costs, verify)
    report.rows += [{"section": BY_PLACE, "workload": "mix", "drafter": name, "requests": len(answers.workloads),
                     "place": place + 1, "agreement": share}
                    for name, shares in agreement_by_place(family, scores, answers).items()
                    for place, share in enumerate(shares)]
    source = args.workload or "the test split"
    report.notes.append(f"{len(answers.workloads)} requests of {source} by {by}, at most {args.max_new_tokens} tokens "
                        f"each, greedy; costs at batch 1 with {args.context} cached tokens: v = "
                        + ", ".join(f"{v:.2f}" for v in verify))
    return report


def judge(family, name: str, answers: Answers, scores: Mapping[str, list[Scores]] | None = None) -> Judged:
    """Alpha, agreement and chains of one drafter on the answers. A composed name is judged too. ``scores``: of
    models, by name, that are known already."""
    views = views_of(family, name, answers, scores)
    steps = {g: [_steps(view, g) for view in views] for g in range(1, MAX_GAMMA + 1)}
    return Judged([_mean(v.overlap) for v in views], [_mean(v.hits) for v in views],
                  {g: [[(d, a) for d, a, _ in s] for s in chains] for g, chains in steps.items()},
                  {g: [[looked for _, _, looked in s] for s in chains] for g, chains in steps.items()})


def model_scores(family, answers: Answers) -> dict[str, list[Scores]]:
    """The scores of every drafter that is a model, by its name."""
    return {name: score(source.model, source.ids, family.target, answers.shard, answers.states)
            for name, source in family.drafters.items() if hasattr(source, "model")}


def agreement_by_place(family, scores: dict[str, list[Scores]], answers: Answers,
                       places: int = 6) -> dict[str, list[float]]:
    """How often a model's favourite is the target's token, at places 1, 2, ... of a draft behind right tokens.

    The first drafter that reads the target's states is there twice: "starved", it reads zeros in their place.
    """
    fed = next((name for name in scores if isinstance(family.drafters[name].model, FedModel)), None)
    if fed:
        states, source = answers.states, family.drafters[fed]
        zeros = States(torch.zeros_like(states.hidden), states.log_z,
                       {layer: torch.zeros_like(kept) for layer, kept in states.inputs.items()})
        scores = scores | {f"{fed}, starved": score(source.model, source.ids, family.target, answers.shard, zeros,
                                                    depth=places)}
    return {name: [_mean([hit for s in many for hit in s.hits[min(place, len(s.hits) - 1)][place:]])
                   for place in range(places)] for name, many in scores.items()}


def _steps(view: View, gamma: int) -> list[tuple[int, int, bool]]:
    """(drafted, accepted, looked up) of every verification of an answer."""
    return [(drafted, accepted, view.looked[at])
            for at, drafted, accepted in verifications(view.drafted, view.accepted, gamma)]


def measure_costs(family, context: int, repeats: int) -> tuple[dict[str, float], list[float]]:
    """c of every drafter, and v(k) for k = 0 to MAX_GAMMA drafted tokens, in units of the target's one-row pass."""
    models, lookups = pool(family)
    times = timings(family, models, lookups, repeats, (context,), [(k + 1, 1) for k in range(MAX_GAMMA + 1)], [(1, 1)])
    one = times["target", 1, 1, context]
    return ({name: times[name, 1, 1, context] / one for name in (*models, *lookups)},
            [times["target", k + 1, 1, context] / one for k in range(MAX_GAMMA + 1)])


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
    """One row per drafter and workload, "mix" last, and the bars. ``..._error``: half of a 95 % interval over
    requests."""
    every = range(len(answers.workloads))
    groups = {name: [i for i in every if answers.workloads[i] == name] for name in dict.fromkeys(answers.workloads)}
    groups["mix"] = list(every)
    spent = {name: {g: [seconds(c, _cost(costs, name), verify, up, costs.get(name, costs.get(name.split("+")[0])))
                        for c, up in zip(chains, j.looked[g])] for g, chains in j.chains.items()}
             for name, j in judged.items()}
    lengths = [tokens(c) for c in next(iter(judged.values())).chains[1]]

    def speed(name: str, gamma: int, rows: list[int]) -> float:
        return sum(lengths[i] for i in rows) / sum(spent[name][gamma][i] for i in rows)

    # a request is served with its drafter's best gamma on the mix, as a fixed setting would be
    setting = {name: max(spent[name], key=lambda g: speed(name, g, groups["mix"])) for name in judged}
    alone = [name for name in judged if "+" not in name]        # compositions do not compete for the best
    best = [max(alone, key=lambda n: lengths[i] / spent[n][setting[n]][i]) for i in every]
    rows_ = []
    for workload, members in groups.items():
        share = defaultdict(float)
        for i in members:
            share[best[i]] += 1 / len(members)
        for name, j in judged.items():
            gamma = max(spent[name], key=lambda g: speed(name, g, members))
            taus = {f"tau{g}": _tau(j.chains[g], members) for g in j.chains}
            emitted, chains = [lengths[i] for i in members], j.chains.get(4, j.chains[gamma])
            rows_.append({"workload": workload, "drafter": name, "requests": len(members),
                          "alpha": _mean([j.alpha[i] for i in members]),
                          "agreement": _mean([j.agreement[i] for i in members]), **taus,
                          "tau4_error": ratio_error(emitted, [len(chains[i]) for i in members]),
                          "c": _cost(costs, name),
                          "best_gamma": gamma, "speed_up": speed(name, gamma, members),
                          "speed_up_error": ratio_error(emitted, [spent[name][gamma][i] for i in members]),
                          "best_share": share[name] if name in alone else None})
    mix = {row["drafter"]: row for row in rows_ if row["workload"] == "mix"}
    return Report("drafters", rows_, _bars(mix, judged, answers), [
        "tau = tokens per verification; best_share: requests for which the drafter has the highest predicted speed, "
        "each drafter at its best gamma on the mix (" + ", ".join(f"{n} {g}" for n, g in setting.items()) + ")"])


def _cost(costs: dict[str, float], name: str) -> float:
    """c of a drafter; of a composition with a model that of what drafts where nothing is found."""
    return costs.get(name, costs[name.split("+")[-1]])


def _bars(mix: dict[str, dict], judged: dict[str, Judged], answers: Answers) -> list[Bar]:
    models = [n for n in mix if not all(up for ups in judged[n].looked[4] for up in ups) and "+" not in n]
    repeating = [i for i, c in enumerate(answers.categories) if c in REPEATING]
    shares = sorted((row["best_share"] for row in mix.values() if row["best_share"] is not None), reverse=True)
    tau = {n: row["tau4"] for n, row in mix.items()}
    alike = [n for n in mix if n not in models and "+" not in n and n != "ngram"]      # lookups for all kinds of text
    kinds = {"smallest model": [min(models, key=lambda n: mix[n]["c"])], "weakest model": [min(models, key=tau.get)],
             "strongest model": [max(models, key=tau.get)], "best drafter": list(mix),
             "best drafter with c <= .06": [n for n in mix if mix[n]["c"] <= .06]}
    best = {kind: max(names, key=tau.get, default=None) for kind, names in kinds.items()}
    copies = {n: _tau(judged[n].chains[4], repeating) for n in ("ngram", *alike)} if repeating else {}
    return [*(Bar(f"tokens per verification at gamma 4, {kind} ({best[kind]})", tau.get(best[kind]), target)
              for kind, target in (("smallest model", ">= 1.75"), ("weakest model", ">= 1.75"),
                                   ("strongest model", ">= 2.3"), ("best drafter", ">= 2.3"),
                                   ("best drafter with c <= .06", ">= 2.0"))),
            Bar(f"tokens per verification at gamma 4, ngram on {', '.join(REPEATING)}", copies.get("ngram"), ">= 1.5"),
            Bar(f"the same over {', '.join(alike) or 'no other lookup'}, as cheap and for all kinds of text",
                copies["ngram"] / max(copies[n] for n in alike) if copies and alike else None, ">= 1.15"),
            Bar("largest share of requests with one best drafter", shares[0], "<= 0.5"),
            Bar("share of requests for which a model drafter is best", sum(mix[n]["best_share"] for n in models),
                ">= 0.4"),
            Bar("share of the third most frequent best drafter", shares[2] if len(shares) > 2 else None, ">= 0.05")]


def _tau(chains: list[Chain], members: list[int]) -> float:
    return sum(tokens(chains[i]) for i in members) / sum(len(chains[i]) for i in members)


def ratio_error(above: Sequence[float], below: Sequence[float]) -> float:
    """Half of the 95 % interval of sum(above) / sum(below) over requests, linearised; 0 for a single request."""
    above, below = np.asarray(above, float), np.asarray(below, float)
    rest, count = above - above.sum() / below.sum() * below, len(above)
    return float(1.96 * np.sqrt((rest ** 2).sum() * count / max(1, count - 1)) / below.sum())


def _mean(values: list) -> float:
    return sum(values) / max(1, len(values))


def shares(rows: Sequence[dict]) -> dict[str, dict[str, float]]:
    """By workload and drafter, for which share of the requests it is the fastest."""
    out: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.get("best_share") is not None:
            out.setdefault(row["workload"], {})[row["drafter"]] = row["best_share"]
    return out
