"""Engine steps in a form that can be drawn: words for ids, the few tokens that matter for a vocabulary."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from spin_core.randomness import ACCEPT, uniform
from spin_core.request import Request, SamplingParams
from spin_core.trace import Event

FATES = ("accepted", "rejected", "replacement", "bonus", "unseen")
"""Of a token in a step: drafted and accepted; drafted and rejected; the target's own token in its stead;
the target's own token after a draft accepted whole; drafted, but not tested, behind a rejection."""

TOP = 7                     # tokens of a place that are shown, beside the drafted and the emitted one


@dataclass
class Place:
    """The distributions at one place of a draft, for the tokens worth showing; the last entry sums up all others.

    ``tokens`` are texts, ``p``, ``q`` and ``residual`` (p - q)+ their probabilities; ``q`` is empty at the
    bonus place, where nothing was drafted. ``drafted`` and ``emitted`` index ``tokens``, None where there is
    none. ``u`` is the number in [0, 1) that the drafted token had to pass with ``u q < p``.
    """

    tokens: list[str]
    p: list[float]
    q: list[float]
    residual: list[float]
    drafted: int | None = None
    emitted: int | None = None
    u: float | None = None


@dataclass
class Step:
    """One verification: what was drafted behind ``before``, what became of it, and the target's own token."""

    before: str
    drafted: list[str]
    fates: list[str]
    own: str | None = None              # None: the text ended inside the accepted run
    own_fate: str | None = None
    places: list[Place] = field(default_factory=list)   # empty unless the engine recorded distributions

    @property
    def accepted(self) -> int:
        return self.fates.count("accepted")

    @property
    def emitted(self) -> list[tuple[str, str]]:
        """The texts that became part of the answer, each with its fate."""
        own = [(self.own, self.own_fate)] if self.own is not None else []
        return [(t, "accepted") for t in self.drafted[:self.accepted]] + own


def read_steps(request: Request, events: Iterable[Event], decode: Callable[[list[int]], str]) -> list[Step]:
    """The verifications of ``request``, in order. With recorded distributions, places show about ``TOP`` tokens."""
    steps, prompt = [], len(request.prompt_ids)
    for event in events:
        if event.request != request.id or event.kind != "step" or not event.emitted:
            continue
        accepted, drafted = event.accepted, len(event.drafted)
        own = event.emitted[accepted] if len(event.emitted) > accepted else None
        rejected = own is not None and accepted < drafted
        fates = ["accepted"] * accepted + ["rejected"] * rejected
        step = Step(decode(request.output_ids[:event.context - prompt]), [decode([t]) for t in event.drafted],
                    fates + ["unseen"] * (drafted - len(fates)))
        if own is not None:
            step.own, step.own_fate = decode([own]), "replacement" if rejected else "bonus"
        if event.distributions is not None:
            step.places = [_place(event, j, step.fates, request.params, decode) for j in range(drafted + 1)]
        steps.append(step)
    return steps


def _place(event: Event, j: int, fates: list[str], params: SamplingParams, decode) -> Place:
    """Place ``j`` of a step; the one behind the draft is the bonus place."""
    p = event.distributions["p"][j].double()
    has_draft = j < len(event.drafted)
    q = event.distributions["q"][j].double() if has_draft else torch.zeros_like(p)
    residual = (p - q).clamp(min=0)
    drafted = event.drafted[j] if has_draft else None
    emitted = event.emitted[j] if j < len(event.emitted) else None
    shown = torch.maximum(p, q).topk(min(TOP, len(p))).indices.tolist()
    shown += [t for t in dict.fromkeys((drafted, emitted)) if t is not None and t not in shown]
    index = torch.tensor(shown)

    def column(distribution: torch.Tensor) -> list[float]:
        return [*distribution[index].tolist(), max(0.0, float(distribution.sum() - distribution[index].sum()))]

    u = None
    if has_draft and not params.greedy and fates[j] != "unseen":
        u = float(uniform(torch.tensor([params.seed]), torch.tensor([event.context + j]), ACCEPT))
    return Place([*(decode([t]) for t in shown), "all others"], column(p), column(q) if has_draft else [],
                 column(residual), None if drafted is None else shown.index(drafted),
                 None if emitted is None else shown.index(emitted), u)
