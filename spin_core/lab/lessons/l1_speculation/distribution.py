"""Is a distribution kept? Exact distributions of short continuations, a chi-square test, and a drafter that breaks the distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import chdtrc      # the chi-square tail; scipy.stats would take two seconds to import
from torch import Tensor

from spin_core.request import Request, SamplingParams

if TYPE_CHECKING:
    from spin_core.draft import ModelDrafter


def disguise(drafter: "ModelDrafter") -> None:
    """Make ``drafter`` BIASED, as a counter-example: it drafts its likeliest token, but reports all of q.

    The verifier then believes that the token came up with probability q(x) when it always comes up, and emits
    it too often. Honest would be a one-hot distribution.
    """
    draw = drafter._draw

    def biased(requests: list[Request], logits: Tensor, step: int) -> tuple[Tensor, Tensor | None]:
        columns, q = draw(requests, logits, step)
        return (columns if q is None else q.argmax(-1)), q

    drafter._draw = biased


def joint_distribution(family, prompt_ids: list[int], params: SamplingParams,
              length: int) -> dict[tuple[int, ...], float]:
    """The exact distribution of the first ``length`` tokens behind a prompt: ids to probability, likeliest first.

    It reads the target's distribution behind every prefix that has any mass, so ``params`` should leave few tokens per
    place (top_k), and ``length`` be small: k^(length - 1) prompts are read for the last place.
    """
    from spin_core.engine import Engine         # here, because lessons that only simulate start sooner without it

    distribution: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        engine = Engine(family, "none", max_batch=min(len(distribution), 64), max_len=len(prompt_ids) + length + 1,
                        record_probs=True)
        ids = {r.id: prefix for prefix, r in zip(distribution, engine.generate(
            [prompt_ids + list(prefix) for prefix in distribution], params.with_(max_new_tokens=1)))}
        longer = {}
        for event in engine.trace.events:
            if event.kind == "step" and event.emitted:
                prefix, p = ids[event.request], event.distributions["p"][0].double()
                for token in p.nonzero().squeeze(-1).tolist():
                    longer[(*prefix, token)] = distribution[prefix] * float(p[token])
        distribution = longer
    return dict(sorted(distribution.items(), key=lambda item: -item[1]))


@dataclass
class DistributionTest:
    """How far a sample is from a distribution, and how far chance alone would put it.

    ``distance`` is the total variation distance sum |f - p| / 2 of the frequencies f from the distribution p; of
    samples that do follow the distribution 95 % come closer than ``noise``. ``p_value`` is that of Pearson's
    chi-square: the chance of a sample at least this odd under the distribution.
    """

    distance: float
    noise: float
    chi_square: float
    freedom: int
    p_value: float


def distribution_test(counts: Sequence[int], distribution: Sequence[float], *, seed: int = 0, repeats: int = 4000) -> DistributionTest:
    """Compare ``counts`` of outcomes with the probabilities ``distribution`` of the same outcomes, which sum to one.

    Outcomes expected less than 5 times are put together for the chi-square, whose approximation needs that.
    An outcome of probability zero that was seen is a certain breach: p-value 0. Raises ValueError if the
    lengths differ, nothing was counted, or the distribution does not sum to one.
    """
    counts, distribution = np.asarray(counts, float), np.asarray(distribution, float)
    total = counts.sum()
    if counts.shape != distribution.shape or total == 0 or abs(distribution.sum() - 1) > 1e-6:
        raise ValueError(f"law_test: {counts.shape[0]} counts summing to {total:g}, {distribution.shape[0]} "
                         f"probabilities summing to {distribution.sum():.6f}")
    distribution = distribution / distribution.sum()
    chance = np.random.default_rng(seed).multinomial(int(total), distribution, repeats) / total
    noise = float(np.quantile(np.abs(chance - distribution).sum(1) / 2, 0.95))
    distance = float(np.abs(counts / total - distribution).sum() / 2)
    if counts[distribution == 0].any():
        return DistributionTest(distance, noise, np.inf, 0, 0.0)
    order = np.argsort(-distribution, kind="stable")
    expected, seen = distribution[order] * total, counts[order]
    cells = int((expected >= 5).sum())
    if 0 < expected[cells:].sum() < 5 and cells:    # too little for a cell of its own: join the smallest
        cells -= 1
    expected = np.append(expected[:cells], expected[cells:].sum())
    seen = np.append(seen[:cells], seen[cells:].sum())
    expected, seen = expected[expected > 0], seen[expected > 0]
    chi_square = float(((seen - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    p_value = float(chdtrc(freedom, chi_square)) if freedom else 1.0
    return DistributionTest(distance, noise, chi_square, freedom, p_value)
