"""Made-up recordings at the paper's scale: accepted drafts of models that are not at hand.

No recording of the paper's models is public. What is: for the 265M drafter against LLaMA-7B, the mean number
of consecutive greedy matches and the hit rate on three data sets (its model card), and for how many requests
it is the best of the five on two of them (SPIN). We make recordings with exactly these properties, and say
which part is ours:

* Along a text a drafter's hits come in runs: a two-state chain with hit rate h and correlation rho, so that
  P(hit | hit) = h + rho (1 - h). We read "consecutive matches" as the mean length of a run of hits.
* Requests differ: logit h = mean + difficulty (shared by all drafters) + taste (its own). Ours: both spreads.
* Larger drafters hit more: the logit of the mean hit rate grows by ``GAIN`` per factor e in size (ours).
  265M stands ``lead`` above this line. On Alpaca and on CP the lead is set so that 265M is the best, in
  goodput, for the published share of requests; CIP's is the mean of both.
* Lengths of prompts and answers are log-normal. Ours: medians and spreads.

Hit rates against 13B and 30B are taken to be those against 7B, which is ours too, and kind to the big
targets.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy import ndarray
from scipy.optimize import bisect
from scipy.special import expit, logit

from spin_core.lab.simulate.checks import finite, whole, within
from spin_core.lab.simulate.recording import MAX_GAMMA, Passes, Recording, chains
from spin_core.lab.simulate.profiles import DRAFTERS

DIFFICULTY, TASTE = 0.35, 0.35      # standard deviations of logit h
GAIN = 0.25
ANCHOR = "265M"


@dataclass(frozen=True)
class DataSet:
    """``hit``, ``run``: published, of 265M against LLaMA-7B. ``lead``: of its logit over the others' line.
    Medians in tokens."""

    name: str
    hit: float
    run: float
    lead: float
    prompt: float
    answer: float
    spread: float = 0.6

    def mean_hit(self, drafter: str) -> float:
        """Mean hit rate over requests."""
        ratio = DRAFTERS[drafter].parameters / DRAFTERS[ANCHOR].parameters
        line = logit(self.hit) - self.lead + GAIN * math.log(ratio)
        return self.hit if drafter == ANCHOR else expit(line)


DATA_SETS = {d.name: d for d in (
    DataSet("Alpaca", 0.567, 3.03, -0.72, prompt=40, answer=100),
    DataSet("CP", 0.565, 2.98, 0.15, prompt=90, answer=180),
    DataSet("CIP", 0.570, 3.08, -0.285, prompt=60, answer=140, spread=0.8),
)}
NAMES = (*DATA_SETS, "Mix")         # Mix: a third of each, in turn
# published: requests for which 265M is the best of five (CP: ChatGPT Prompts)
SHARES = {"Alpaca": 0.03, "CP": 0.40}


def recording(name: str, requests: int, passes: Mapping[str, Passes], seed: int = 0, *, scale: float = 1.0,
              spread: float | None = None) -> Recording:
    """A recording of ``requests`` made-up answers of data set ``name``; ``passes``: the costs of its passes.

    ``scale`` multiplies the medians of lengths, ``spread`` takes the place of their spread: to see how much depends on
    these two, which are ours. Raises ValueError for an unknown name, no requests, or numbers that cannot be.
    """
    if name not in NAMES:
        raise ValueError(f"recording: unknown data set {name!r}; known: {', '.join(NAMES)}")
    whole("recording", 1, requests=requests)
    whole("recording", 0, seed=seed)
    finite("recording", zero=False, scale=scale)
    finite("recording", **{} if spread is None else {"spread": spread})
    sets = [DATA_SETS[name]] if name in DATA_SETS else list(DATA_SETS.values())
    rng = np.random.default_rng(seed)
    prompts, accepted, lengths = [], [], []
    for r in range(requests):
        data = sets[r % len(sets)]
        wide = data.spread if spread is None else spread
        prompt, answer = scale * np.exp(wide * rng.standard_normal(2)) * (data.prompt, data.answer)
        prompts.append(int(np.clip(prompt, 8, 1024)))
        lengths.append(int(np.clip(answer, 8, 512)))
        accepted.append(_chains(data, lengths[-1], rng))
    accepted = np.concatenate(accepted, 1)
    about = {"kind": "modelled", "seed": seed,
             "source": "made up; calibrated to the 265M model card and to SPIN's shares of the best"}
    return Recording(tuple(DRAFTERS), accepted, np.full_like(accepted, MAX_GAMMA), np.append(0, np.cumsum(lengths)),
                     np.array(prompts), tuple(sets[r % len(sets)].name for r in range(requests)),
                     tuple(f"{name}-{r}" for r in range(requests)), dict(passes), about=about)


def _chains(data: DataSet, length: int, rng: np.random.Generator) -> ndarray:
    """Accepted tokens of a chain from every position of one answer, ``[drafters, length]``."""
    difficulty = DIFFICULTY * rng.standard_normal()
    out = []
    for drafter in DRAFTERS:
        centre, rho = _distribution(data, drafter)
        h = expit(centre + difficulty + TASTE * rng.standard_normal())
        out.append(chains([hits(h, rho, length, rng)]))
    return np.stack(out)


def hits(h: float, rho: float, length: int, rng: np.random.Generator) -> ndarray:
    """Hits ``[length]`` of a two-state chain: rate ``h``, correlation ``rho`` of neighbours.

    A neighbour is copied with probability rho and drawn anew otherwise: then P(hit | hit) = h + rho (1 - h).
    """
    within("hits", 0, 1, h=h, rho=rho)
    whole("hits", 1, length=length)
    fresh = rng.random(length) < h
    new = rng.random(length) >= rho
    new[0] = True
    return fresh[np.maximum.accumulate(np.where(new, np.arange(length), 0))]


_DISTRIBUTIONS: dict[tuple[DataSet, str], tuple[float, float]] = {}


def _distribution(data: DataSet, drafter: str) -> tuple[float, float]:
    """The centre of logit h that gives the mean hit rate, and rho such that runs of 265M have the published
    length.

    Runs: E[hits] / E[ends of runs] = E[h] / E[h (1 - h) (1 - rho)].
    """
    if (data, drafter) not in _DISTRIBUTIONS:
        nodes, weights = np.polynomial.hermite_e.hermegauss(31)
        weights, spread = weights / weights.sum(), math.hypot(DIFFICULTY, TASTE)

        def centre(mean: float) -> float:
            return bisect(lambda at: weights @ expit(at + spread * nodes) - mean, -10, 10, xtol=1e-16)

        h = expit(centre(data.hit) + spread * nodes)
        rho = 1 - data.hit / (data.run * (weights @ (h * (1 - h))))
        _DISTRIBUTIONS[data, drafter] = centre(data.mean_hit(drafter)), rho
    return _DISTRIBUTIONS[data, drafter]
