"""Is decoding lossless? Exact distributions of short texts, a test of samples against them, and a biased drafter."""

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

    The target is asked for p behind every prefix of positive probability, so ``params`` should leave few tokens per
    place (top_k) and ``length`` be small: the last place alone takes k^(length - 1) prompts.
    """
    from spin_core.engine import Engine         # here, because lessons that only simulate start sooner without it

    probs: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        engine = Engine(family, "none", max_batch=min(len(probs), 64), max_len=len(prompt_ids) + length + 1,
                        record_probs=True)
        ids = {r.id: prefix for prefix, r in zip(probs, engine.generate(
            [prompt_ids + list(prefix) for prefix in probs], params.with_(max_new_tokens=1)))}
        longer = {}
        for event in engine.trace.events:
            if event.kind == "step" and event.emitted:
                prefix, p = ids[event.request], event.distributions["p"][0].double()
                for token in p.nonzero().squeeze(-1).tolist():
                    longer[(*prefix, token)] = probs[prefix] * float(p[token])
        probs = longer
    return dict(sorted(probs.items(), key=lambda item: -item[1]))


@dataclass
class DistributionTest:
    """How far a sample is from a distribution p, and how far chance alone would put it.

    ``distance`` is the total variation distance sum |f - p| / 2 of the frequencies f from p; 95 % of the samples drawn
    from p come closer than ``noise``. ``p_value`` is that of Pearson's chi-square: the probability that a sample drawn
    from p is at least this unlikely.
    """

    distance: float
    noise: float
    chi_square: float
    freedom: int
    p_value: float


def distribution_test(counts: Sequence[int], probs: Sequence[float], *, seed: int = 0,
                      repeats: int = 4000) -> DistributionTest:
    """Compare ``counts`` of outcomes with the probabilities ``probs`` of the same outcomes, which sum to one.

    Outcomes expected less than 5 times are put together for the chi-square, whose approximation needs that.
    An outcome of probability zero that was seen is a certain error: p-value 0. Raises ValueError if the
    lengths differ, nothing was counted, or the probabilities do not sum to one.
    """
    counts, probs = np.asarray(counts, float), np.asarray(probs, float)
    total = counts.sum()
    if counts.shape != probs.shape or total == 0 or abs(probs.sum() - 1) > 1e-6:
        raise ValueError(f"distribution_test: {counts.shape[0]} counts summing to {total:g}, {probs.shape[0]} "
                         f"probabilities summing to {probs.sum():.6f}")
    probs = probs / probs.sum()
    chance = np.random.default_rng(seed).multinomial(int(total), probs, repeats) / total
    noise = float(np.quantile(np.abs(chance - probs).sum(1) / 2, 0.95))
    distance = float(np.abs(counts / total - probs).sum() / 2)
    if counts[probs == 0].any():
        return DistributionTest(distance, noise, np.inf, 0, 0.0)
    order = np.argsort(-probs, kind="stable")
    expected, seen = probs[order] * total, counts[order]
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
