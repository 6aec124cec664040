"""Triton: what one reading of a chunk of a row can bring, in three kinds of reading.

All work in powers of two: 2^((x - peak) scale) with scale = log2(e) / temperature is e^((x - peak) / temperature).
A larger peak rescales what was summed up under a smaller one, so nothing has to be known of a row before it is read.
"""

from __future__ import annotations

import triton
import triton.language as tl

from spin_core.randomness import FINAL, GROUP
from spin_core.verify.kernel_noise import speeds

INF = tl.constexpr(float("inf"))
NONE = tl.constexpr(2**31 - 1)              # neither a column nor a group
_GROUP, _FINAL = tl.constexpr(GROUP), tl.constexpr(FINAL)


@triton.jit
def read(ROW, first, vocab, scale, greedy, BLOCK: tl.constexpr, TILES: tl.constexpr):
    """Peak, mass in units of the peak's, and, for a greedy row, the first argmax.

    The mass is NaN if the chunk holds NaN or +inf, and zero if it holds nothing finite.
    """
    peak = -INF
    total = 0.0
    best = NONE
    for tile in range(TILES):
        columns = first + tile * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(ROW + columns, mask=columns < vocab, other=-INF).to(tl.float32)
        top = tl.max(x)
        if greedy & (top > peak):
            best = tl.min(tl.where(x == top, columns, NONE))
        new = tl.maximum(peak, top)
        base = tl.where(new == -INF, 0.0, new)
        total = total * tl.exp2((peak - base) * scale) + tl.sum(tl.exp2((x - base) * scale))
        peak = new
    return peak, total, best


@triton.jit
def exponential_race(ROW, first, vocab, scale, token, seed, position, BLOCK: tl.constexpr, TILES: tl.constexpr):
    """Peak, mass, and the first round of the race over p without ``token`` (negative: over p): speed and winner.

    A race asks who is first, not how fast in seconds, so it needs no normaliser: one reading is enough for a bonus
    token, and for a one-hot draft, whose residual is p without the drafted token. Speeds are relative to the peak.
    """
    peak = -INF
    total = 0.0
    fastest = 0.0
    winner = NONE
    for tile in range(TILES):
        group = (first + tile * BLOCK) // _GROUP + tl.arange(0, BLOCK // _GROUP)
        columns = group[:, None] * _GROUP + tl.arange(0, _GROUP)[None, :]
        x = tl.load(ROW + columns, mask=columns < vocab, other=-INF).to(tl.float32)
        new = tl.maximum(peak, tl.max(tl.max(x, 1), 0))
        base = tl.where(new == -INF, 0.0, new)
        shrink = tl.exp2((peak - base) * scale)
        weight = tl.exp2((x - base) * scale)
        total = total * shrink + tl.sum(tl.sum(weight, 1), 0)
        fastest = fastest * shrink
        peak = new
        speed = tl.sum(tl.where(columns == token, 0.0, weight), 1) * speeds(seed, position, group, 0)
        top = tl.max(speed, 0)
        if top > fastest:
            fastest = top
            winner = tl.min(tl.where(speed == top, group, NONE), 0)
    return peak, total, fastest, winner


@triton.jit
def drafted_distribution(Q, MAP, columns, vocab, token, soft, SUBSET: tl.constexpr, SOFT: tl.constexpr):
    """q at ``columns``: the row Q, or one-hot at ``token`` (negative: zero everywhere)."""
    q = tl.where(columns == token, 1.0, 0.0)
    if SOFT:
        at = columns
        held = columns < tl.where(soft, vocab, 0)
        if SUBSET:
            at = tl.load(MAP + columns, mask=held, other=-1)
            held = at >= 0
        q = tl.where(soft, tl.load(Q + at, mask=held, other=0.0).to(tl.float32), q)
    return q


@triton.jit
def draw(ROW, Q, MAP, first, vocab, scale, peak, inverse, floor, token, soft, seed, position,
         SUBSET: tl.constexpr, SOFT: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr):
    """The first rounds of the races over (p - q)+ and over p, for a row whose distribution is known: mass, and per race speed
    and winner.

    The distribution: ``peak``, ``inverse`` of the mass, ``floor`` of what the filters keep. The race over p is for a residual
    without mass. A NaN in q makes the residual's speed -1.
    """
    total = 0.0
    speed_r = 0.0
    speed_p = 0.0
    winner_r = NONE
    winner_p = NONE
    broken = 0
    for tile in range(TILES):
        group = (first + tile * BLOCK) // _GROUP + tl.arange(0, BLOCK // _GROUP)
        columns = group[:, None] * _GROUP + tl.arange(0, _GROUP)[None, :]
        x = tl.load(ROW + columns, mask=columns < vocab, other=-INF).to(tl.float32)
        x = tl.where(x < floor, -INF, x)
        weight = tl.exp2((x - peak) * scale) * inverse
        q = drafted_distribution(Q, MAP, columns, vocab, token, soft, SUBSET, SOFT)
        broken = tl.maximum(broken, tl.max(tl.max((q != q).to(tl.int32), 1), 0))
        mass = tl.sum(weight, 1)
        total += tl.sum(mass, 0)
        fast = speeds(seed, position, group, 0)
        speed = tl.sum(tl.where(weight > q, weight - q, 0.0), 1) * fast
        top = tl.max(speed, 0)
        if top > speed_r:
            speed_r = top
            winner_r = tl.min(tl.where(speed == top, group, NONE), 0)
        speed = mass * fast
        top = tl.max(speed, 0)
        if top > speed_p:
            speed_p = top
            winner_p = tl.min(tl.where(speed == top, group, NONE), 0)
    return total, tl.where(broken > 0, -1.0, speed_r), winner_r, speed_p, winner_p


@triton.jit
def final(ROW, Q, MAP, group, vocab, scale, peak, inverse, floor, token, soft, without, rest, seed, position,
          SUBSET: tl.constexpr, SOFT: tl.constexpr):
    """The second round, among the columns of the winning group: over (p - q)+ if ``rest``, over p without ``token`` if
    ``without``, else over p."""
    within = tl.arange(0, _GROUP)
    columns = tl.minimum(group, (vocab - 1) // _GROUP) * _GROUP + within
    x = tl.load(ROW + columns, mask=columns < vocab, other=-INF).to(tl.float32)
    x = tl.where((x < floor) | (without & (columns == token)), -INF, x)
    top = tl.where(rest, peak, tl.max(x))
    weight = tl.exp2((x - tl.where(top == -INF, 0.0, top)) * scale)
    if rest:
        q = drafted_distribution(Q, MAP, columns, vocab, token, soft, SUBSET, SOFT)
        weight = tl.where(weight * inverse > q, weight * inverse - q, 0.0)
    speed = weight / tl.max(weight) * speeds(seed, position, within, _FINAL)
    return tl.min(tl.where(speed == tl.max(speed), columns, NONE))
