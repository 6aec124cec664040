"""Triton: what one reading of a chunk of a row can bring, in three kinds of reading.

All work in powers of two: 2^((x - peak) scale) with scale = log2(e) / temperature is e^((x - peak) / temperature).
A larger peak rescales what was summed up under a smaller one, so nothing has to be known of a row before it is read.
"""

import triton
import triton.language as tl

from spin_core.randomness import FINAL, GROUP
from spin_core.verify.kernel_noise import inverse_exponential

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
    """Peak, mass, and the first round of the draw from p without ``token`` (negative: from p): score and winner.

    The winner has the largest score w / E, whatever the weights w sum to, so no normaliser is needed: one reading is
    enough for a bonus token, and for a one-hot draft, whose residual is p without the drafted token. Scores are
    relative to the peak.
    """
    peak = -INF
    total = 0.0
    best = 0.0
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
        best = best * shrink
        peak = new
        score = tl.sum(tl.where(columns == token, 0.0, weight), 1) * inverse_exponential(seed, position, group, 0)
        top = tl.max(score, 0)
        if top > best:
            best = top
            winner = tl.min(tl.where(score == top, group, NONE), 0)
    return peak, total, best, winner


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
    """The first rounds of the draws from (p - q)+ and from p, for a row whose distribution is known: mass, and of each
    draw score and winner.

    The distribution: ``peak``, ``inverse`` of the mass, ``floor`` of what the filters keep. The draw from p is for a
    residual without mass. A NaN in q makes the residual's score -1.
    """
    total = 0.0
    score_r = 0.0
    score_p = 0.0
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
        noise = inverse_exponential(seed, position, group, 0)
        score = tl.sum(tl.where(weight > q, weight - q, 0.0), 1) * noise
        top = tl.max(score, 0)
        if top > score_r:
            score_r = top
            winner_r = tl.min(tl.where(score == top, group, NONE), 0)
        score = mass * noise
        top = tl.max(score, 0)
        if top > score_p:
            score_p = top
            winner_p = tl.min(tl.where(score == top, group, NONE), 0)
    return total, tl.where(broken > 0, -1.0, score_r), winner_r, score_p, winner_p


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
    score = weight / tl.max(weight) * inverse_exponential(seed, position, within, _FINAL)
    return tl.min(tl.where(score == tl.max(score), columns, NONE))
