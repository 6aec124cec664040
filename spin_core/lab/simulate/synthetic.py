"""Random recordings: for tests, for sweeps, and for questions that no real workload answers."""

from collections.abc import Mapping, Sequence

import numpy as np

from spin_core.lab.simulate.checks import finite, whole, within
from spin_core.lab.simulate.recording import MAX_GAMMA, Passes, Recording

# Seconds of a target that is bound by its memory, as large models on GPUs are: a row more costs little. Made up.
TARGET = Passes((1, 64), (0.020, 0.024))


def drafter_passes(share: float) -> Passes:
    """A drafter whose pass over a row takes ``share`` of the target's, and over 256 rows twice as long."""
    return Passes((1, 256), (share * TARGET.seconds[0], 2 * share * TARGET.seconds[0]))


def synthetic(distributions: Mapping[str, Mapping[str, float]], costs: Mapping[str, float], order: Sequence[str], *,
              tokens: int = 120, spread: float = 20.0, prompt: int = 60, seed: int = 0) -> Recording:
    """A recording of one answer of about ``tokens`` tokens for each workload named in ``order``.

    ``distributions[workload][drafter]``: mean acceptance of a drafted token. Each request draws its own from Beta(mean
    * spread, (1 - mean) * spread) and accepts every token independently with it. ``costs``: a drafter's pass as a share
    of the target's. Raises ValueError for a workload or drafter that is missing from ``distributions``, and for numbers
    that cannot be.
    """
    whole("synthetic", 1, tokens=tokens, prompt=prompt)
    whole("synthetic", 0, seed=seed)
    finite("synthetic", zero=False, spread=spread)
    if missing := set(order) - set(distributions):
        raise ValueError(f"synthetic: no acceptance for workload {sorted(missing)[0]!r}")
    for workload, drafter in ((w, d) for w in set(order) for d in costs):
        if drafter not in distributions[workload]:
            raise ValueError(f"synthetic: no acceptance of {drafter!r} for workload {workload!r}")
        within("synthetic", 0, 1, **{f"acceptance of {drafter}": distributions[workload][drafter]})
    rng = np.random.default_rng(seed)
    lengths = rng.integers(max(2, tokens // 2), tokens * 3 // 2 + 1, len(order))
    accepted = []
    for drafter in costs:
        mean = np.array([distributions[w][drafter] for w in order])
        chance = np.repeat(rng.beta(np.maximum(mean * spread, 1e-3), np.maximum((1 - mean) * spread, 1e-3)), lengths)
        chain = np.cumprod(rng.random((len(chance), MAX_GAMMA)) < chance[:, None], 1).sum(1)
        left = np.concatenate([np.arange(n, 0, -1) for n in lengths])
        accepted.append(np.minimum(chain, left).astype(np.uint8))
    return Recording(
        tuple(costs), np.stack(accepted), np.full((len(costs), int(lengths.sum())), MAX_GAMMA, np.uint8),
        np.append(0, np.cumsum(lengths)), np.full(len(order), prompt), tuple(order),
        tuple(f"{w}-{i}" for i, w in enumerate(order)),
        {"target": TARGET} | {d: drafter_passes(c) for d, c in costs.items()},
        about={"kind": "modelled", "source": "spin_core.lab.simulate.synthetic", "seed": seed})
