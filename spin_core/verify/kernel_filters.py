"""Triton: what top-k, top-p and min-p leave of a row, without a sort.

top-k and top-p each keep the smallest set of largest scores whose weight, number or mass, reaches a target. The floor
of that set is found by bisection on the ordered bit patterns of floats: exact, ties included. A bisection reads the
row at most 33 times (there are 2^32 floats), as a rule far less, and from the cache where it holds a row.
"""

import triton
import triton.language as tl

from spin_core.verify.kernel_rows import INF


@triton.jit
def weigh(ROW, vocab, floor, peak, scale, BLOCK: tl.constexpr):
    """Number and mass, in units of the peak's, of the logits of a row that are not below the floor."""
    number = 0.0
    mass = 0.0
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(ROW + columns, mask=columns < vocab, other=-INF).to(tl.float32)
        kept = (x >= floor) & (columns < vocab)
        number += tl.sum(kept.to(tl.float32))
        mass += tl.sum(tl.where(kept, tl.exp2((x - peak) * scale), 0.0))
    return number, mass


@triton.jit
def order(x):
    """A float's place among the floats, as int64: neighbours differ by one."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def search(ROW, vocab, peak, scale, floor, number, mass, target, by_mass, BLOCK: tl.constexpr):
    """The highest floor above which the weight still reaches ``target``, from a floor above which it does.

    ``number`` and ``mass`` are the weights above ``floor``. Returns the new three.
    """
    low = order(floor)
    high = order(peak) + 1                                          # nothing is as high
    above = 0.0                                                     # the number from `high` on
    while (high - low > 1) & (number - above > 1.0):                # one logit between: it is the floor's
        middle = (low + high) >> 1
        bits = middle.to(tl.int32)
        trial = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)
        some, weight = weigh(ROW, vocab, trial, peak, scale, BLOCK)
        if tl.where(by_mass, weight, some) >= target:
            low = middle
            floor = trial
            number = some
            mass = weight
        else:
            high = middle
            above = some
    return floor, number, mass


@triton.jit
def filtered(ROW, vocab, peak, total, scale, top_k, top_p, min_p, BLOCK: tl.constexpr):
    """Floor and mass of what top-k, top-p and min-p leave of a row, each working on what those before have left."""
    floor = tl.full([], -INF, tl.float32)
    number = vocab.to(tl.float32)
    if (top_k > 0) & (top_k < vocab):
        floor, number, total = search(ROW, vocab, peak, scale, floor, number, total, top_k.to(tl.float32), False, BLOCK)
    if top_p < 1.0:
        floor, number, total = search(ROW, vocab, peak, scale, floor, number, total, top_p * total, True, BLOCK)
    if min_p > 0.0:
        floor = tl.maximum(floor, peak + tl.log2(min_p) / scale)
        number, total = weigh(ROW, vocab, floor, peak, scale, BLOCK)
    return floor, total
