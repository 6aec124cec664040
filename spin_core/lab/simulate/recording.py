"""What every drafter would have done, everywhere in the target's own text.

Greedy text is the same whoever drafts. So a chain of drafted tokens that starts at any position of an answer has one
outcome, and it can be written down once, for all drafters and all positions. Any policy can then be replayed
on the recording, exactly, without a model.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy import ndarray

from spin_core.files import writing
from spin_core.lab.simulate.checks import finite, whole

MAX_GAMMA = 8
STORED = Path(__file__).parent / "recordings" / "mix.npz"


@dataclass(frozen=True)
class Passes:
    """What passes over a number of rows take: measured at ``rows``, straight lines between and beyond. Seconds."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.seconds) or len(self.rows) < 2 or list(self.rows) != sorted(set(self.rows)):
            raise ValueError(f"Passes: needs two or more rising numbers of rows, each with its seconds; got {self}")
        for rows, seconds in zip(self.rows, self.seconds):
            whole("Passes", 1, rows=rows)
            finite("Passes", seconds=seconds)

    def __call__(self, rows) -> ndarray:
        """Seconds of passes over ``rows``, a number or an array of numbers >= 1."""
        slope = max(0.0, (self.seconds[-1] - self.seconds[-2]) / (self.rows[-1] - self.rows[-2]))
        return np.interp(rows, self.rows, self.seconds) + slope * np.maximum(0, np.subtract(rows, self.rows[-1]))

    def table(self, count: int) -> ndarray:
        """Seconds of passes over 0 .. ``count`` rows; no row, no pass."""
        out = self(np.arange(count + 1))
        out[0] = 0.0
        return out


@dataclass(frozen=True)
class Recording:
    """R answers of N tokens in all, end to end, and A drafters.

    ``accepted [A, N]`` uint8: of a chain of ``MAX_GAMMA`` tokens drafted behind the text before token t, how many the
    target accepts. ``proposed [A, N]`` uint8: how long that chain is: prompt lookup may find nothing. ``starts
    [R + 1]``: where the answers begin in N. ``prompts [R]``: their prompts' lengths. ``workloads``, ``ids``: whose they
    are. ``passes``: what a pass of each drafter takes; that of "target" verifies. ``lookups``: drafters of which a
    whole draft costs one pass. ``composed``: drafters that are two, {name: (looks up, drafts where nothing is found)}.
    ``about``: where it comes from, as plain JSON values; ``about["kind"]`` is "measured" or "modelled".
    """

    arms: tuple[str, ...]
    accepted: ndarray
    proposed: ndarray
    starts: ndarray
    prompts: ndarray
    workloads: tuple[str, ...]
    ids: tuple[str, ...]
    passes: dict[str, Passes]
    lookups: tuple[str, ...] = ()
    composed: dict[str, tuple[str, str]] = field(default_factory=dict)
    about: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape, missing = (len(self.arms), int(self.starts[-1])), {*self.arms, "target"} - {*self.passes}
        if self.accepted.shape != shape or self.proposed.shape != shape:
            raise ValueError(f"Recording: chains {self.accepted.shape} and {self.proposed.shape}, expected {shape}")
        if (self.accepted > self.proposed).any() or self.proposed.max(initial=0) > MAX_GAMMA:
            raise ValueError(f"Recording: a chain is longer than {MAX_GAMMA}, or more of it accepted than proposed")
        if not len(self.prompts) == len(self.workloads) == len(self.ids) == len(self.starts) - 1:
            raise ValueError("Recording: prompts, workloads, ids and starts must tell of the same answers")
        if self.prompts.dtype.kind not in "iu" or self.prompts.min(initial=1) < 1:
            raise ValueError("Recording: prompts are whole numbers of tokens, at least 1")
        if (np.diff(self.starts) < 1).any():
            raise ValueError("Recording: an answer without tokens has nothing to replay")
        if missing:
            raise ValueError(f"Recording: no costs of {', '.join(sorted(missing))}")

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def drafters(self) -> tuple[str, ...]:
        """The drafters that stand for themselves: neither made of others nor only a part of composed ones."""
        parts = {first for first, _ in self.composed.values()}
        return tuple(a for a in self.arms if "+" not in a and a not in parts)

    @property
    def made_of_others(self) -> tuple[str, ...]:
        """The drafters that are two: composed, or two lookups in one."""
        return tuple(a for a in self.arms if "+" in a)

    @property
    def lengths(self) -> ndarray:
        """Tokens of each answer, ``[R]``."""
        return np.diff(self.starts)

    def take(self, rows) -> "Recording":
        """The answers ``rows`` only, in that order; an answer may come several times. ValueError where no row is given,
        or one that the recording does not have."""
        rows = np.asarray(rows)
        if not rows.size:
            raise ValueError("Recording.take: a recording has at least one answer")
        if rows.dtype.kind not in "iu" or not -len(self) <= rows.min() <= rows.max() < len(self):
            raise ValueError(f"Recording.take: rows are whole numbers below {len(self)}, got {rows}")
        tokens = np.concatenate([np.arange(self.starts[r], self.starts[r + 1]) for r in rows])
        return replace(self, accepted=self.accepted[:, tokens], proposed=self.proposed[:, tokens],
                       starts=np.append(0, np.cumsum(self.lengths[rows])), prompts=self.prompts[rows],
                       workloads=tuple(self.workloads[r] for r in rows), ids=tuple(self.ids[r] for r in rows))

    def compose(self, name: str, first: str, rest: str) -> "Recording":
        """One drafter more: what ``first``, which looks up, finds, and ``rest`` where it finds nothing."""
        if first not in self.lookups or rest not in self.arms or name in self.arms:
            raise ValueError(f"cannot compose {name!r} of {first!r} and {rest!r}; lookups: {', '.join(self.lookups)}; "
                             f"drafters: {', '.join(self.arms)}")
        a, b = self.arms.index(first), self.arms.index(rest)
        found = self.proposed[a] > 0
        return replace(self, arms=(*self.arms, name),
                       accepted=np.vstack([self.accepted, np.where(found, self.accepted[a], self.accepted[b])]),
                       proposed=np.vstack([self.proposed, np.where(found, self.proposed[a], self.proposed[b])]),
                       passes=self.passes | {name: self.passes[rest]},
                       composed=self.composed | {name: (first, rest)})

    def only(self, arms: Sequence[str]) -> "Recording":
        """These drafters only; parts of composed ones must be among them."""
        rows = [self.arms.index(a) for a in arms]
        return replace(self, arms=tuple(arms), accepted=self.accepted[rows], proposed=self.proposed[rows],
                       lookups=tuple(n for n in self.lookups if n in arms),
                       composed={n: parts for n, parts in self.composed.items() if n in arms})

    def lookup_finds(self, name: str) -> ndarray | None:
        """Of a composed drafter, where its lookup finds something ``[N]``; None for all others."""
        return self.proposed[self.arms.index(self.composed[name][0])] > 0 if name in self.composed else None

    def save(self, path: str | Path) -> None:
        """Write a compressed ``.npz``."""
        costs = {name: [list(p.rows), list(p.seconds)] for name, p in self.passes.items()}
        text = {"arms": self.arms, "workloads": self.workloads, "ids": self.ids, "passes": costs,
                "lookups": self.lookups, "composed": self.composed, "about": self.about}
        with writing(path) as part, open(part, "wb") as file:
            np.savez_compressed(file, accepted=self.accepted, proposed=self.proposed, starts=self.starts,
                                prompts=self.prompts, text=np.array(json.dumps(text)))

    @staticmethod
    def load(path: str | Path = STORED) -> "Recording":
        """Read what ``save`` wrote; by default the recording that comes with the package."""
        with np.load(path) as data:
            text = json.loads(str(data["text"]))
            return Recording(tuple(text["arms"]), data["accepted"], data["proposed"], data["starts"], data["prompts"],
                             tuple(text["workloads"]), tuple(text["ids"]),
                             {n: Passes(tuple(r), tuple(s)) for n, (r, s) in text["passes"].items()},
                             tuple(text["lookups"]), {n: tuple(p) for n, p in text["composed"].items()}, text["about"])


def memory_bound(recording: Recording, row: float = 0.004) -> Recording:
    """The same texts and drafts where fetching weights is all that counts, as on a GPU at small batches: modelled.

    A row more costs ``row`` of a one-row pass, for the target and for drafters, whose one-row passes keep their
    measured share of the target's.
    """
    finite("memory_bound", row=row)
    base = recording.passes["target"](1)
    flat = {name: Passes((1, 1001), (float(p(1)), float(p(1) * (1 + 1000 * row))))
            for name, p in recording.passes.items()}
    return replace(recording, passes=flat, about=recording.about | {
        "kind": "modelled", "costs": f"one-row passes as measured ({base * 1e3:.1f} ms), {row:.1%} more per row"})


def verifications(proposed: Sequence[int], accepted: Sequence[int], gamma: int) -> list[tuple[int, int, int]]:
    """(place, drafted, accepted) of every verification of an answer where, at every place, a chain of ``proposed``
    tokens is there to be drafted and ``accepted`` of them would be: each emits the accepted tokens and one more.

    At most ``gamma`` are drafted, and no more than what remains but one, as in the engine.
    """
    whole("verifications", 0, gamma=gamma)
    at, out = 0, []
    while at < len(proposed):
        drafted = min(gamma, proposed[at], len(proposed) - at - 1)
        out.append((at, drafted, min(drafted, accepted[at])))
        at += out[-1][2] + 1
    return out


def chains(hits: list[list[bool]]) -> ndarray:
    """Accepted tokens of a chain of ``MAX_GAMMA`` from every position ``[n]`` uint8.

    ``hits[depth][t]`` as in :class:`spin_core.lab.distill.evaluate.Scores`: one row where the depth does not matter.
    """
    depths, n = [np.asarray(h, bool) for h in hits], len(hits[0])
    going, out = np.ones(n, bool), np.zeros(n, np.uint8)
    for depth in range(MAX_GAMMA):
        right = np.zeros(n, bool)
        right[:max(0, n - depth)] = depths[min(depth, len(depths) - 1)][depth:]
        going &= right
        out += going
    return out
