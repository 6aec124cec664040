"""Comparing contenders live: they decode the same prompts, round by round, and are compared within a round.

A machine's speed drifts. Engines therefore take turns of a few steps, so that a slow moment hits them all, and a ratio
is the median over the rounds of ratios within a round.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scipy.stats import t

from spin_core.engine import Engine
from spin_core.request import Request, SamplingParams
from spin_core.trace import Trace

Tokens = list[list[int]]
TURN = 8        # steps of an engine before the next one goes on: about a second


@dataclass
class Contender:
    """A way to decode: ``decode(prompts)`` returns the emitted tokens of each, or ``engine`` does it.

    ``cells``: tokens and seconds by (round, workload). ``texts``: of its last round, by workload. ``only``: the one
    workload that it decodes.
    """

    name: str
    decode: Callable[[Tokens], Tokens] | None = None
    drafter: str | None = None
    gamma: int | None = None
    engine: Engine | None = None
    only: str | None = None
    cells: dict[tuple[int, str], tuple[int, float]] = field(default_factory=dict)
    texts: dict[str, Tokens] = field(default_factory=dict)

    def record(self, number: int, workload: str, texts: Tokens, seconds: float) -> None:
        """Keep what it decoded in a round."""
        self.cells[number, workload], self.texts[workload] = (sum(map(len, texts)), seconds), texts

    def rate(self, cells=None) -> float:
        """Tokens per second over these cells (default: all)."""
        tokens, seconds = map(sum, zip(*(self.cells[cell] for cell in (self.cells if cells is None else cells))))
        return tokens / seconds

    def rates(self) -> list[float]:
        """Tokens per second of each round."""
        return [self.rate([cell for cell in self.cells if cell[0] == number])
                for number in dict.fromkeys(number for number, _ in self.cells)]


def serve(contenders: Sequence[Contender], number: int, workload: str, prompts: Tokens, params: SamplingParams,
          turn: int = TURN) -> None:
    """Let the contenders that are engines decode a workload in turns, as part of round ``number``."""
    served = in_turns([c.engine for c in contenders], prompts, params, turn)
    for contender, (requests, seconds) in zip(contenders, served):
        contender.record(number, workload, [r.output_ids for r in requests], seconds)


def in_turns(engines: Sequence[Engine], prompts: Tokens, params: SamplingParams,
             turn: int = TURN) -> list[tuple[list[Request], float]]:
    """Let every engine serve all prompts (seeds 0, 1, ...), ``turn`` steps at a time. Returns by engine its finished
    requests and the seconds of its own turns."""
    work = [[engine.submit(prompt, params.with_(seed=seed)) for seed, prompt in enumerate(prompts)]
            for engine in engines]
    seconds = [0.0] * len(engines)
    while not all(r.finished for requests in work for r in requests):
        for i, (engine, requests) in enumerate(zip(engines, work)):
            start = time.perf_counter()
            for _ in range(turn):
                if all(r.finished for r in requests):
                    break
                engine.step()
            if engine.pipeline:                     # or its threads would work on in others' turns
                engine.pipeline.drain()
            seconds[i] += time.perf_counter() - start
    return list(zip(work, seconds))


def ratio(a: Contender, b: Contender) -> float | None:
    """a's rate over b's on what both have decoded: the median over the rounds. None where there is nothing."""
    rounds = ratios(a, b)
    return statistics.median(rounds) if rounds else None


def ratios(a: Contender, b: Contender) -> list[float]:
    """a's rate over b's on what both have decoded, one for each round."""
    rounds: dict[int, list] = {}
    for cell in a.cells.keys() & b.cells.keys():
        rounds.setdefault(cell[0], []).append(cell)
    return [a.rate(cells) / b.rate(cells) for cells in rounds.values()]


def interval(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """The 95 % interval of their mean, by Student's t; None for fewer than two."""
    if len(values) < 2:
        return None, None
    half = t.ppf(.975, len(values) - 1) * statistics.stdev(values) / len(values) ** .5
    return statistics.mean(values) - half, statistics.mean(values) + half


def same_text(a: Contender, b: Contender) -> float:
    """Share of a's texts that equal b's."""
    return statistics.mean(x == y for name, texts in a.texts.items() for x, y in zip(texts, b.texts[name]))


def of_trace(trace: Trace) -> dict:
    """Columns from an engine's trace: what a verification brings, and each phase's share of the steps' time."""
    metrics = trace.metrics()
    total = sum(metrics["seconds"].values())
    return {"tokens_per_verification": metrics["tokens_per_verification"], "acceptance": metrics["acceptance_rate"],
            **{f"{phase}_share": seconds / total for phase, seconds in metrics["seconds"].items()}}


def drafters_used(trace: Trace) -> str:
    """Each drafter's share of the verifications, for example "ngram 60.2%, fed-code 39.8%"."""
    steps = Counter(e.drafter for e in trace.events if e.kind == "step" and e.emitted)
    return ", ".join(f"{name} {count / steps.total():.1%}" for name, count in steps.most_common())
