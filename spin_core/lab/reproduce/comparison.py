"""The README's table "paper and ours", made from the numbers beside the figures.

Every row is one figure of SPIN's paper: what was published, what the simulator makes of the paper's hardware, and what
was measured with the embedded models: a cell says so where that is predicted or replayed from measured parts instead of
served. All numbers come from ``figures/NAME.json`` and from the benchmarks in ``figures/data``; here is only said which
ones, and how to read them. A dash: no such series.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from spin_core.files import writing
from spin_core.lab.results import figures
from spin_core.lab.lessons.stored import stored
from spin_core.provenance import ROOT

README = ROOT / "README.md"
START, END = "<!-- table: python -m spin_core reproduce --table -->", "<!-- end of table -->"
PADDED = {"padded": "gathered", "padded_view": "in place"}
"""How lesson 4 calls the two padded ways -> how the table does."""
HEAD = "| figure | what | published | modelled: V100, LLaMA | measured: embedded models |\n|---|---|---|---|---|"


class Numbers:
    """The series of one figure, by kind and label; ``directory``: where it was read from."""

    def __init__(self, document: dict, directory: str | Path | None = None) -> None:
        self.directory = directory
        self.series = {(s["kind"], s["label"]): dict(zip(map(str, s["x"]), s["y"])) for s in document["series"]}

    def at(self, kind: str, label: str, x) -> float:
        """y of that series at ``x``. KeyError where it has none."""
        value = self.series[kind, label][str(x)]
        if value is None:
            raise KeyError(x)
        return value

    def labelled(self, kind: str, start: str = "") -> dict[str, dict]:
        """The series of that kind whose label begins so."""
        return {label: s for (k, label), s in self.series.items() if k == kind and label.startswith(start)}


def _share(n: Numbers) -> list:
    def measured() -> str:
        shares = {label: s["mix"] for label, s in n.labelled("measured").items()}
        best = sorted(shares, key=shares.get, reverse=True)[:3]
        return "mix, by predicted speed: " + ", ".join(f"{name} {shares[name]:.0%}" for name in best)
    paper = "LLaMA 265M, one of five SSMs"
    return [lambda: f"265M: Alpaca {n.at('published', paper, 'Alpaca'):.0%}, CP {n.at('published', paper, 'CP'):.0%}",
            lambda: "set to the published shares", measured]


def _padding(n: Numbers) -> list:
    def ours(kind: str) -> Callable[[], str]:
        ways = {"gathered": "padded, gathered", "in place": "padded, cache is the rectangle"}
        return lambda: "; ".join(f"batch {batch}: " + ", ".join(
            f"{name} {n.at(kind, way, batch):.0%}" for name, way in ways.items()) for batch in (8, 16))
    return [lambda: f"about {n.at('published', 'speed-up lost to padding', 'batching'):.0%}", ours("modelled"),
            ours("measured")]


def _overall(n: Numbers) -> list:
    def ratios(kind: str) -> dict[str, list[float]]:
        """By where: SPIN over vanilla on every data set on which both were measured."""
        found = {}
        for label, spin in n.labelled(kind, "SPIN, ").items():
            vanilla = n.series.get((kind, label.replace("SPIN", "vanilla", 1)), {})
            found[label] = [spin[x] / vanilla[x] for x in spin if spin[x] and vanilla.get(x)]
        return {label.removeprefix("SPIN, ").removesuffix(", tokens/s"): some for label, some in found.items() if some}
    return [lambda: f"about {n.at('published', 'SPIN over vanilla', 'overall'):.2f}×",
            lambda: _range(sum(ratios("modelled").values(), [])),
            lambda: "; ".join([_listed({where: _range(some) for where, some in ratios("measured").items()}),
                               *_served("our plain decoding", "plain decoding", n.directory)])]


def _ablation(n: Numbers, whole: Numbers) -> list:
    rungs = ("+ selection", "+ decomposition", "+ pipeline")

    def climb(series: dict) -> str:
        return " → ".join(f"{series[rung]:.2f}×" for rung in rungs if series.get(rung))

    def ladder(kind: str) -> Callable[[], str]:
        return lambda: climb(n.series[kind, "CP, LLaMA-7B"])

    def measured() -> str:
        found = {where: text for where, series in n.labelled("measured").items() if (text := climb(series))}
        for label, rates in whole.labelled("measured").items():
            where = label.removesuffix(", tokens/s")
            if rates.get("vanilla") and rates.get("plain"):
                text = climb({rung: rate / rates["plain"] for rung, rate in rates.items()})
                found[f"over plain decoding, vanilla {rates['vanilla'] / rates['plain']:.2f}×; {where}"] = text
        return _listed(found)
    return [ladder("published"), ladder("modelled"), measured]


def _at_scale(large: Numbers, policy: str, rival: str) -> float:
    """Modelled goodput of ``policy`` over that of ``rival`` in the setting for which most is published."""
    rates = "CP, batch 8, LLaMA-7B, tokens/s"
    return large.at("modelled", rates, policy) / large.at("modelled", rates, rival)


def _fixed(n: Numbers, large: Numbers) -> list:
    def measured() -> str:
        spin = n.at("measured", "spin", "tokens/s")
        fixed = [s["tokens/s"] for label, s in n.labelled("measured", "fixed:").items() if not label.endswith(":none")]
        replayed = f"replayed: {spin / max(fixed):.2f}× the best, {spin / min(fixed):.2f}× the worst"
        return "; ".join([replayed, *_live(n.directory)])
    setting = "tokens/s (their setting)"
    spin, one = (lambda name=name: n.at("published", setting, name) for name in ("SPIN", "LLaMA 68M for all"))
    return [lambda: f"{spin() / one():.2f}× 68M for all",
            lambda: f"{_at_scale(large, 'spin', '68M'):.2f}×, full information "
                    f"{_at_scale(large, 'spin-full', '68M'):.2f}× (CP, 7B)", measured]


def _live(directory: str | Path | None) -> list[str]:
    """What the benchmarks that serve measured of SPIN over the best fixed drafter, greedy, by batch."""
    found = {}
    for live in stored("select-live", lambda row: row["contender"] == "policy spin", directory):
        found[f"bench select-live, {live.machine}"] = [
            f"{row['vs_best_fixed']:.2f}×" + (f" at batch {row['batch']}" if "batch" in row else "")
            for row in live.rows]
    return _served(r"the best fixed drafter \(.*\)", "the best", directory) + [
        f"live, over the best: {', '.join(ratios)} ({where})" for where, ratios in found.items() if ratios]


def _served(rival: str, name: str, directory: str | Path | None) -> list[str]:
    """SPIN over ``rival`` (a pattern of its bars' names) as ``bench peers`` served, greedily, by batch."""
    out = []
    for peers in stored("peers", directory=directory):
        bars = ((re.fullmatch(rf"SPIN over {rival}, (batch \d+), greedy", bar), ratio)
                for bar, ratio in peers.bars.items())
        if ratios := [f"{ratio:.2f}× at {bar[1]}" for bar, ratio in bars if bar and ratio]:
            out.append(f"live, over {name}: {', '.join(ratios)} (bench peers, {peers.machine}, all workloads)")
    return out


def _bandits(n: Numbers, large: Numbers) -> list:
    setting = "tokens/s (setting unknown)"

    def over(ratio: Callable[[str], float], how: str = "") -> Callable[[], str]:
        return lambda: how + " and ".join(f"{ratio(rival):.2f}× {rival}" for rival in ("greedy", "epsilon-greedy"))

    def measured(rival: str) -> float:
        return n.at("measured", "spin, goodput", "tokens/s") / n.at("measured", f"{rival}, goodput", "tokens/s")
    return [lambda: f"{n.at('published', setting, 'SPIN') / n.at('published', setting, 'rival bandit'):.2f}×",
            over(lambda rival: _at_scale(large, "spin", rival)), over(measured, "replayed: ")]


def _latency(n: Numbers) -> list:
    whole = "whole verification, ms"

    def modelled() -> str:
        padded = [f"{name} {n.at('modelled', whole, way):.0f}" for way, name in PADDED.items()]
        return f"{', '.join(padded)} → {n.at('modelled', whole, 'decomposed'):.0f} ms"
    return [lambda: f"{n.at('published', whole, 'padded'):.0f} → {n.at('published', whole, 'decomposed'):.0f} ms",
            modelled, lambda: "attention: " + _less(n, "measured", "{}, Alpaca-like, us per layer", 16)]


def _memory(n: Numbers) -> list:
    return [lambda: "padded runs out of memory at batch 32",
            lambda: "batch 32: " + _less(n, "modelled", "LLaMA-7B, {}, bytes", 32),
            lambda: "batch 32: " + _less(n, "measured", "{}, bytes", 32)]


def _less(n: Numbers, kind: str, label: str, x: int) -> str:
    """What decomposition takes at ``x`` beside each padded way that there is; ``label``: of a series, {} its way."""
    ours = n.at(kind, label.format("decomposed"), x)
    saved = {name: 1 - ours / n.at(kind, label.format(way), x) for way, name in PADDED.items()
             if (kind, label.format(way)) in n.series}
    if not saved:
        raise KeyError(label)
    return ", ".join(f"{abs(s):.0%} {'less' if s >= 0 else 'more'} than {name}" for name, s in saved.items())


def _micro_batches(n: Numbers, large: Numbers) -> list:
    goodput = "goodput, tokens per second"
    return [lambda: f"{n.at('published', 'Alpaca, relative to one micro-batch', 4):.2f}×",
            lambda: f"{large.at('modelled', '1.4B drafts, batch 8', 4):.2f}× at batch 8, "
                    f"{large.at('modelled', '1.4B drafts, batch 64', 4):.2f}× at 64 (1.4B drafts)",
            lambda: f"{n.at('measured', goodput, 4) / n.at('measured', goodput, 1):.2f}×"]


def _heuristic(n: Numbers, large: Numbers) -> list:
    bar = "goodput of the heuristic over the best fixed count"

    def modelled() -> str:
        found = large.series["modelled", "goodput of the heuristic over the best's"]
        return f"{min(found.values()):.2f} of the best number's goodput at worst, trying included"

    def measured() -> str:
        # the figure's single sweep cannot separate a few percent from noise; the benchmark compares within turns
        shares = {f"bench pipeline, turn by turn, {found.machine}": found.bars[bar]
                  for found in stored("pipeline", directory=n.directory) if found.bars.get(bar)}
        sweep = n.series.get(("measured", "goodput relative to the best fixed count"), {}).get("heuristic")
        shares = ({"the figure's one sweep": sweep} if sweep else {}) | shares
        return "of the best number's goodput: " + _listed({where: f"{share:.2f}" for where, share in shares.items()})
    return [lambda: "the best number or one next to it", modelled if large.series else None, measured]


SECOND = {"ablation": "system_measured",
          "selection_vs_fixed": "selection_at_scale", "selection_vs_bandits": "selection_at_scale",
          "microbatches": "microbatches_at_scale", "microbatch_heuristic": "microbatch_heuristic_at_scale"}
"""The rows that need the numbers of a second figure."""

ROWS = {"best_ssm_share": ("share of requests for which a drafter is best", _share),
        "batching_loss": ("share of the speed-up lost to padding (negative: the padded way is faster)", _padding),
        "overall_goodput": ("SPIN over vanilla speculation", _overall),
        "ablation": ("selection → decomposition → pipeline, over vanilla", _ablation),
        "selection_vs_fixed": ("selection over fixed drafters", _fixed),
        "selection_vs_bandits": ("selection over other bandits", _bandits),
        "verify_latency": ("verifying 16 requests: padded → decomposed", _latency),
        "verify_memory": ("memory of a verification, decomposed", _memory),
        "microbatches": ("four micro-batches over one", _micro_batches),
        "microbatch_heuristic": ("the heuristic's number of micro-batches", _heuristic)}


def table(directory: str | Path | None = None) -> str:
    """The table in Markdown, from the figures in ``directory`` (default: the checkout's). ValueError for a figure that
    is missing."""
    documents = {d["name"]: d for d in figures.read(directory)}
    if missing := ROWS.keys() - documents.keys():
        raise ValueError(f"the table needs the figures {', '.join(sorted(missing))}: run their notebooks first")
    lines = [HEAD]
    for name, (what, read) in ROWS.items():
        parts = [documents[name]] + ([documents.get(SECOND[name], {"series": []})] if name in SECOND else [])
        cells = [_cell(make) for make in read(*(Numbers(part, directory) for part in parts))]
        lines.append(f"| [{name}](figures/{name}.svg) | {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def current(readme: str) -> str:
    """The table that stands in the README. ValueError where its marks are not there."""
    return _parts(readme)[1].strip()


def write(readme: Path = README, directory: str | Path | None = None) -> None:
    """Put the table of today's figures into the README."""
    before, _, after = _parts(readme.read_text("utf-8"))
    text = f"{before}{START}\n{table(directory)}\n{END}{after}"
    with writing(readme) as part:
        part.write_text(text, "utf-8")


def _parts(readme: str) -> tuple[str, str, str]:
    """What stands before the table's first mark, between its marks, and behind the last."""
    before, start, rest = readme.partition(START)
    inside, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"the README has no table between {START!r} and {END!r}")
    return before, inside, after


def _cell(make: Callable[[], str] | None) -> str:
    try:
        return make() if make else "–"
    except KeyError:
        return "–"


def _listed(cells: dict[str, str]) -> str:
    """What was measured, and where."""
    if not cells:
        raise KeyError("nothing measured")
    return "; ".join(f"{cell} ({where})" for where, cell in cells.items())


def _range(values: list[float]) -> str:
    if not values:
        raise KeyError("no values")
    return f"{min(values):.2f}× to {max(values):.2f}×"
