"""Triton: the queue from which the programs of the verify kernel take their work.

An entry is one word: a row, its request, and how the row is to be read. It is good for as many tickets as a row has
chunks. Programs take tickets in order. A ticket whose entry is not there yet waits, but only while another program,
already running, works on what precedes it: so there is no deadlock, whatever the number of programs.
"""

import triton
import triton.language as tl

READ, DRAW, RACE = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)    # 0: no entry


@triton.jit
def entry(CU, PROB_ROW, TEMPERATURE, TOP_K, TOP_P, MIN_P, b, i, SOFT: tl.constexpr):
    """The word for request b going on at drafted token i, or at its bonus."""
    end = tl.load(CU + b + 1)
    once = (tl.load(TEMPERATURE + b) > 0) & (tl.load(TOP_K + b) == 0) & (tl.load(TOP_P + b) >= 1) \
        & (tl.load(MIN_P + b) <= 0)
    if SOFT:
        once = once & (tl.load(PROB_ROW + i, mask=i < end, other=-1) < 0)
    return word(i + b, b, tl.where(once, RACE, READ))


@triton.jit
def word(row, b, phase):
    return (row << 26) | (b << 2) | phase


@triton.jit
def take(QUEUE, DONE, CU, PROB_ROW, TEMPERATURE, TOP_K, TOP_P, MIN_P, place, batch, SOFT: tl.constexpr):
    """Wait for the entry at ``place``; 0 when all requests are done. The first ones are the requests' first rows."""
    if place < batch:
        found = entry(CU, PROB_ROW, TEMPERATURE, TOP_K, TOP_P, MIN_P, place, tl.load(CU + place), SOFT)
    else:
        found = tl.atomic_add(QUEUE + place, 0)
        done = tl.atomic_add(DONE, 0)
        while (found == 0) & (done < batch):
            done = tl.atomic_add(DONE, 0)
            found = tl.atomic_add(QUEUE + place, 0)
    return found
