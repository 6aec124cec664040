"""README's "Paper and ours": five numbers, and a table with one number a cell, all of them read from stored results.

Published and modelled numbers come from the table of hypotheses (``bench hypotheses``), measured ones from the numbers
beside the figures and from the benchmarks in ``figures/data``. A dash: no such number.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from spin_core.files import writing
from spin_core.lab.bench import hypotheses
from spin_core.lab.results.stored import stored
from spin_core.lab.results import figures
from spin_core.lab.provenance import ROOT

README = ROOT / "README.md"
START, END = "<!-- table: python -m spin_core reproduce --table -->", "<!-- end of table -->"
MODELS = {"cached": "with a KV cache", "recompute": "no KV cache"}
"""Hypotheses that are shown -> their columns."""
HEADS = ("published", *(f"modelled, {model}" for model in MODELS.values()), "measured")


class Results:
    """The stored results in ``directory`` (default: the checkout's figures)."""

    def __init__(self, directory: str | Path | None = None) -> None:
        self.directory = directory
        self.figures = {document["name"]: document["series"] for document in figures.read(directory)}

    def series(self, figure: str, label: str, kind: str = "measured") -> dict[str, float]:
        """y by x of the one series whose label matches. KeyError where there is none."""
        for one in self.figures[figure]:
            if one["kind"] == kind and re.fullmatch(label, one["label"]):
                return {str(x): y for x, y in zip(one["x"], one["y"]) if y is not None}
        raise KeyError(label)

    def bar(self, benchmark: str, name: str) -> float:
        """The value of the first stored bar that matches. KeyError where there is none."""
        for report in stored(benchmark, directory=self.directory):
            for bar, value in report.bars.items():
                if value is not None and re.fullmatch(name, bar):
                    return value
        raise KeyError(name)


Number = Callable[[Results], float]


@dataclass(frozen=True)
class Row:
    """``what`` a number says, the ``figure`` that shows it, the ``quantity`` of the table of hypotheses that it is, or
    how it is ``published`` and ``modelled`` (by hypothesis) otherwise, and how it was ``measured``."""

    figure: str
    what: str
    quantity: str | None = None
    measured: Number | None = None
    modelled: dict[str, Number] | None = None
    percent: bool = False


def _ratio(figure: str, label: str, one: str, other: str, kind: str = "measured") -> Number:
    """y at ``one`` over y at ``other`` in one series."""
    def read(results: Results) -> float:
        y = results.series(figure, label, kind)
        return y[one] / y[other]
    return read


def _spin_over(rival: str) -> Number:
    """SPIN's goodput over a rival's, the mean of all workloads."""
    def read(results: Results) -> float:
        spin, other = (results.series("overall_goodput", f"{who}, embedded models, .*, tokens/s")
                       for who in ("SPIN", rival))
        return mean(spin[x] / other[x] for x in spin.keys() & other.keys())
    return read


def _rung(name: str) -> Number:
    return _ratio("ablation", "mix, embedded models, .*", name, "vanilla")


def _over_best_fixed(results: Results) -> float:
    fixed = [one["y"][0] for one in results.figures["selection_vs_fixed"] if re.match("fixed:(?!none)", one["label"])]
    return results.series("selection_vs_fixed", "spin")["tokens/s"] / max(fixed)


def _best_fixed_at_scale(label: str) -> Number:
    def read(results: Results) -> float:
        y = results.series("selection_at_scale", f"{label}, LLaMA-7B, tokens/s", "modelled")
        return y["spin"] / max(value for name, value in y.items() if name.endswith("M") or name.endswith("B"))
    return read


def _over_greedy(results: Results) -> float:
    spin, greedy = (results.series("selection_vs_bandits", f"{name}, goodput") for name in ("spin", "greedy"))
    return spin["tokens/s"] / greedy["tokens/s"]


def _attention(results: Results) -> float:
    ours, padded = (results.series("verify_latency", f"{way}, Alpaca-like, us per layer")
                    for way in ("decomposed", "padded"))
    return ours["16"] / padded["16"]


def _largest_share(results: Results) -> float:
    return max(one["y"][one["x"].index("mix")] for one in results.figures["best_ssm_share"]
               if one["kind"] == "measured" and not one["label"].endswith("this run"))


def _best_count(results: Results) -> float:
    y = results.series("microbatches", "goodput, tokens per second")
    return float(max(y, key=y.get))


ROWS = (
    Row("overall_goodput", "SPIN over vanilla speculation", "SPIN over vanilla", _spin_over("vanilla")),
    Row("overall_goodput", "SPIN over plain decoding, batch 1",
        measured=lambda r: r.bar("peers", "SPIN over our plain decoding, batch 1, greedy")),
    Row("overall_goodput", "SPIN over plain decoding, batch 8",
        measured=lambda r: r.bar("peers", "SPIN over our plain decoding, batch 8, greedy")),
    Row("ablation", "vanilla and selection, over vanilla", "+ selection, CP 7B", _rung("+ selection")),
    Row("ablation", "... and decomposition", "+ decomposition, CP 7B", _rung("+ decomposition")),
    Row("ablation", "... and the pipeline", "+ pipeline, CP 7B", _rung("+ pipeline")),
    Row("selection_vs_fixed", "tokens/s, LLaMA-68M drafts for all", "68M for all, tokens/s"),
    Row("selection_vs_fixed", "tokens/s, SPIN", "SPIN, tokens/s"),
    Row("selection_vs_fixed", "SPIN over the best fixed drafter", None, _over_best_fixed,
        {"cached": _best_fixed_at_scale("CP, batch 8"), "recompute": _best_fixed_at_scale("CP, batch 8, no cache")}),
    Row("selection_vs_bandits", "SPIN over a greedy bandit", "SPIN over greedy", _over_greedy),
    Row("best_ssm_share", "largest share of requests for one drafter", "265M is the best, CP", _largest_share,
        percent=True),
    Row("batching_loss", "speed-up lost to padding", "lost to padding",
        lambda r: r.series("batching_loss", "padded, gathered")["16"], percent=True),
    Row("verify_latency", "verification of 16 requests, padded, ms", "verification, padded, ms"),
    Row("verify_latency", "the same, decomposed, ms", "verification, decomposed, ms"),
    Row("verify_latency", "time of attention, decomposed over padded", None, _attention),
    Row("verify_memory", "batch at which padded runs out of memory", "padded out of memory at batch"),
    Row("microbatches", "four micro-batches over one", "gain of 4 micro-batches",
        _ratio("microbatches", "goodput, tokens per second", "4", "1")),
    Row("microbatches", "best number of micro-batches, Alpaca prompts", "best micro-batches, Alpaca", _best_count),
    Row("microbatch_heuristic", "goodput of the heuristic over the best number's", None,
        lambda r: r.bar("pipeline", "goodput of the heuristic over the best fixed count"),
        {"cached": lambda r: min(r.series("microbatch_heuristic_at_scale", "goodput of the heuristic over the best's",
                                          "modelled").values())}),
)


FIVE = (
    ("SPIN over vanilla speculation", 1, "times vanilla speculation: what SPIN's authors report on V100 cards."),
    ("SPIN over vanilla speculation", 3, "times: our simulator, where the target keeps no KV cache."),
    ("SPIN over vanilla speculation", 2, "times: our simulator with a KV cache, as servers use today."),
    ("SPIN over plain decoding, batch 1", 4, "times plain decoding: measured here on a CPU, one request at a time."),
    ("SPIN over plain decoding, batch 8", 4, "times plain decoding: the same, eight requests at a time."))
"""The numbers to remember: row, column of the table, and what the number is."""


@dataclass(frozen=True)
class Line:
    """A row with its numbers as text, "–" where there is none; ``close``: hypotheses within 25 % of the published
    one."""

    row: Row
    published: str
    modelled: dict[str, str]
    measured: str
    close: frozenset[str]

    def cells(self, bold: str) -> list[str]:
        """What the numbers say, and the numbers under ``HEADS``; those that are close stand in braces of ``bold``."""
        modelled = [bold.format(value) if model in self.close else value for model, value in self.modelled.items()]
        return [self.row.what, self.published, *modelled, self.measured]


def lines(results: Results, report: dict) -> list[Line]:
    """The rows whose figures are there, with the numbers of ``results`` and of the table of hypotheses."""
    judged, out = hypotheses.table(report), []
    for row in ROWS:
        if row.figure not in results.figures:
            continue
        found = judged.get(row.quantity, {})
        modelled = {model: found[model]["modelled"] if found else _read((row.modelled or {}).get(model), results)
                    for model in MODELS}
        out.append(Line(row, _text(next(iter(found.values()))["published"] if found else None, row.percent),
                        {model: _text(value, row.percent) for model, value in modelled.items()},
                        _text(_read(row.measured, results), row.percent),
                        frozenset(model for model in MODELS if found and hypotheses.is_close(found[model]))))
    return out


def table(directory: str | Path | None = None) -> str:
    """The table in Markdown, from the results in ``directory`` (default: the checkout's figures). Modelled numbers
    within 25 % of the published one are bold. ValueError for a figure or a table of hypotheses that is missing."""
    results, report = Results(directory), hypotheses.stored(directory)
    if missing := {row.figure for row in ROWS} - results.figures.keys():
        raise ValueError(f"the table needs the figures {', '.join(sorted(missing))}: run their notebooks first")
    if report is None:
        raise ValueError(f"the table needs {hypotheses.STORED}: run python -m spin_core bench hypotheses --json")
    text = [f"| | {' | '.join([*HEADS, 'figure'])} |", "|---" + "|---:" * len(HEADS) + "|---|"]
    text += [f"| {' | '.join(line.cells('**{}**'))} | [{line.row.figure}](figures/{line.row.figure}.svg) |"
             for line in lines(results, report)]
    return "\n".join(text)


def summary(directory: str | Path | None = None) -> str:
    """The five numbers as a list in Markdown, those that there are, and the table below them."""
    made = table(directory)
    rows = {row[0]: row for row in (line.strip("| ").split(" | ") for line in made.splitlines())}
    five = [f"* **{rows[row][column].strip('*')}** {what}" for row, column, what in FIVE if rows[row][column] != "–"]
    return "\n".join([*five, "", made])


def _read(number: Number | None, results: Results) -> float | None:
    try:
        return number(results) if number else None
    except KeyError:
        return None


def _text(value: float | None, percent: bool = False) -> str:
    if value is None:
        return "–"
    if percent or float(value).is_integer():
        return f"{value:.0%}" if percent else f"{value:.0f}"
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def current(readme: str) -> str:
    """The numbers and the table that stand in the README. ValueError where its marks are not there."""
    return _parts(readme)[1].strip()


def write(readme: Path = README, directory: str | Path | None = None) -> None:
    """Put today's numbers and table into the README."""
    before, _, after = _parts(readme.read_text("utf-8"))
    text = f"{before}{START}\n{summary(directory)}\n{END}{after}"
    with writing(readme) as part:
        part.write_text(text, "utf-8")


def _parts(readme: str) -> tuple[str, str, str]:
    """What stands before the table's first mark, between its marks, and behind the last."""
    before, start, rest = readme.partition(START)
    inside, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"the README has no table between {START!r} and {END!r}")
    return before, inside, after
