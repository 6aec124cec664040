"""Triton: the random numbers of :mod:`spin_core.randomness`, bit for bit, made where they are used."""

import triton
import triton.language as tl

from spin_core.randomness import ACCEPT, RESIDUAL

_ACCEPT, _RESIDUAL = tl.constexpr(ACCEPT), tl.constexpr(RESIDUAL)


@triton.jit
def uniform(seed, position):
    """The accept test's number in [0, 1), as randomness.uniform makes it."""
    position = position.to(tl.uint32)
    zero = position * 0
    word, _, _, _ = tl.philox(seed, zero, position, zero + _ACCEPT, zero)
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08      # 2**-24


@triton.jit
def inverse_exponential(seed, position, item, first):
    """1 / E, the noise of ``item`` (int32: a column or a group) in the round of an exponential race whose blocks begin
    at ``first``; E: see randomness.exponential_race."""
    block = (item // 4).to(tl.uint32) + first
    zero = block * 0
    a, b, c, d = tl.philox(seed, block, zero + position.to(tl.uint32), zero + _RESIDUAL, zero)
    which = item % 4
    word = tl.where(which < 2, tl.where(which == 0, a, b), tl.where(which == 2, c, d))
    x = tl.minimum((word.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)     # 2**-32; 1 - 2**-24
    # log1p(-x) = log(1 - x) x / lost, where `lost` is what the rounded 1 - x took away: precise however small x is
    rest = 1.0 - x
    lost = 1.0 - rest
    return tl.where(lost == 0.0, 1.0 / x, -lost / (tl.log(rest) * x))
