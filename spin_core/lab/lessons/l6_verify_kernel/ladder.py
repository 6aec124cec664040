"""The verify kernel as a ladder of five small Triton kernels, each one step nearer to
``spin_core/verify/kernel.py``.

On a GPU they are compiled, without one Triton's interpreter runs them (TRITON_INTERPRET=1 before Triton is
imported). Every rung has a function that launches it; ``checks.py`` tells whether it, or your copy of
it, does what it should.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from spin_core import randomness
from spin_core.verify.kernel_noise import inverse_exponential, uniform

FINAL = tl.constexpr(randomness.FINAL)
INF = tl.constexpr(float("inf"))
NONE = tl.constexpr(2**31 - 1)


# ---- rung 1: the log-sum-exp of a row in one reading

@triton.jit
def lse_of(ROW, vocab, BLOCK: tl.constexpr):
    """The largest logit so far, and the sum of exp(x - largest): a larger one rescales what is summed up."""
    peak = -INF
    total = 0.0
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(ROW + columns, mask=columns < vocab, other=-INF).to(tl.float32)
        new = tl.maximum(peak, tl.max(x))
        total = total * tl.exp(peak - new) + tl.sum(tl.exp(x - new))
        peak = new
    return peak + tl.log(total)


@triton.jit
def lse_kernel(LOGITS, OUT, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    tl.store(OUT + row, lse_of(LOGITS + row * vocab, vocab, BLOCK))


def logsumexp(logits: Tensor, block: int = 128) -> Tensor:
    """``logits [N, V]`` -> ``[N]`` float32."""
    out = torch.full((len(logits),), torch.nan, device=logits.device)
    lse_kernel[len(logits),](logits, out, logits.shape[1], BLOCK=block)
    return out


# ---- rung 2: the accept test needs two numbers more, not two rows

@triton.jit
def accept_kernel(LOGITS, TOKENS, Q, SEED, POSITION, OUT, vocab, BLOCK: tl.constexpr):
    n = tl.program_id(0)
    token = tl.load(TOKENS + n)
    lse = lse_of(LOGITS + n * vocab, vocab, BLOCK)
    p = tl.exp(tl.load(LOGITS + n * vocab + token).to(tl.float32) - lse)
    q = tl.load(Q + n * vocab + token)
    u = uniform(tl.load(SEED + n), tl.load(POSITION + n))
    tl.store(OUT + n, (u * q < p).to(tl.int8))


def accept(logits: Tensor, tokens: Tensor, q: Tensor, seed: Tensor, position: Tensor, block: int = 128) -> Tensor:
    """``logits, q [N, V]``; ``tokens, seed, position [N]`` -> ``[N]`` bool: is the drafted token accepted?"""
    out = torch.full((len(tokens),), -1, dtype=torch.int8, device=logits.device)
    accept_kernel[len(tokens),](logits, tokens, q, seed, position, out, logits.shape[1], BLOCK=block)
    return out == 1


# ---- rung 3: a race finds the token that replaces a rejected one

@triton.jit
def race_of(ROW, Q, lse, seed, position, rejected, vocab, BLOCK: tl.constexpr):
    """Every column starts at once and takes the time E / weight, E exponential: the fastest one wins.

    The weight is (p - q)+ where a token was ``rejected``, else p. There is no normaliser, no cumulative sum,
    and nothing to sort.
    """
    best = 0.0
    winner = NONE
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < vocab
        weight = tl.exp(tl.load(ROW + columns, mask=inside, other=-INF).to(tl.float32) - lse)
        if rejected:
            q = tl.load(Q + columns, mask=inside, other=0.0)
            weight = tl.where(weight > q, weight - q, 0.0)
        speed = weight * inverse_exponential(seed, position, columns, FINAL)      # 1 / E, from the position's counter
        top = tl.max(speed)
        if top > best:
            best = top
            winner = tl.min(tl.where(speed == top, columns, NONE))
    return winner


@triton.jit
def race_kernel(LOGITS, Q, SEED, POSITION, OUT, vocab, BLOCK: tl.constexpr):
    n = tl.program_id(0)
    ROW = LOGITS + n * vocab
    lse = lse_of(ROW, vocab, BLOCK)
    tl.store(OUT + n, race_of(ROW, Q + n * vocab, lse, tl.load(SEED + n), tl.load(POSITION + n), True, vocab, BLOCK))


def replace(logits: Tensor, q: Tensor, seed: Tensor, position: Tensor, block: int = 128) -> Tensor:
    """``logits, q [N, V]``; ``seed, position [N]`` -> ``[N]`` tokens drawn from (p - q)+."""
    out = torch.full((len(logits),), -1, dtype=torch.int64, device=logits.device)
    race_kernel[len(logits),](logits, q, seed, position, out, logits.shape[1], BLOCK=block)
    return out


# ---- rung 4: a ragged batch, and no row behind a rejection

@triton.jit
def verify_request(LOGITS, TOKENS, CU, Q, SEED, POSITION, b, vocab, BLOCK: tl.constexpr):
    """Request b: how many of its drafted tokens are accepted, and the token behind them."""
    start, end = tl.load(CU + b), tl.load(CU + b + 1)
    seed, position = tl.load(SEED + b), tl.load(POSITION + b)
    i = start
    going = True
    lse = 0.0
    while going:
        ROW = LOGITS + (i + b) * vocab              # a request owns a row more than it has drafts
        lse = lse_of(ROW, vocab, BLOCK)
        going = i < end
        if going:
            token = tl.load(TOKENS + i)
            p = tl.exp(tl.load(ROW + token).to(tl.float32) - lse)
            u = uniform(seed, position + i - start)
            going = u * tl.load(Q + i * vocab + token) < p
            if going:
                i += 1
    last = race_of(LOGITS + (i + b) * vocab, Q + i * vocab, lse, seed, position + i - start, i < end, vocab, BLOCK)
    return i - start, last


@triton.jit
def ragged_kernel(LOGITS, TOKENS, CU, Q, SEED, POSITION, ACCEPTED, LAST, vocab, BLOCK: tl.constexpr):
    b = tl.program_id(0)
    accepted, last = verify_request(LOGITS, TOKENS, CU, Q, SEED, POSITION, b, vocab, BLOCK)
    tl.store(ACCEPTED + b, accepted)
    tl.store(LAST + b, last)


def ragged(logits: Tensor, tokens: Tensor, cu: Tensor, q: Tensor, seed: Tensor, position: Tensor, block: int = 128
           ) -> tuple[Tensor, Tensor]:
    """``logits [N + B, V]``, ``tokens [N]``, ``cu [B + 1]``, ``q [N, V]`` -> ``[B]`` accepted, ``[B]`` last tokens."""
    accepted, last = (torch.full((len(seed),), -1, dtype=torch.int64, device=logits.device) for _ in range(2))
    ragged_kernel[len(seed),](logits, tokens, cu, q, seed, position, accepted, last, logits.shape[1], BLOCK=block)
    return accepted, last


# ---- rung 5: in place, so that the device never waits for the host

@triton.jit
def in_place_kernel(LOGITS, TOKENS, CU, Q, SEED, POSITION, TEXT, LENGTHS, vocab, room, WIDTH: tl.constexpr,
                    BLOCK: tl.constexpr):
    b = tl.program_id(0)
    position = tl.load(POSITION + b)
    accepted, last = verify_request(LOGITS, TOKENS, CU, Q, SEED, POSITION, b, vocab, BLOCK)
    place = tl.arange(0, WIDTH)
    drafted = tl.load(TOKENS + tl.load(CU + b) + place, mask=place < accepted, other=0)
    tl.store(TEXT + b * room + position + place, tl.where(place < accepted, drafted, last), mask=place <= accepted)
    tl.store(POSITION + b, position + accepted + 1)
    tl.store(LENGTHS + b, position + accepted)      # the cache holds all tokens but the last; the rest is stale


def in_place(logits: Tensor, tokens: Tensor, cu: Tensor, q: Tensor, seed: Tensor, position: Tensor, text: Tensor,
             lengths: Tensor, most: int, block: int = 128) -> None:
    """As :func:`ragged`, with at most ``most`` drafted tokens each; written into ``text [B, room]``,
    ``position [B]`` and the cache's ``lengths [B]``. One launch, and no number comes back."""
    in_place_kernel[len(seed),](logits, tokens, cu, q, seed, position, text, lengths, logits.shape[1], text.shape[1],
                                WIDTH=triton.next_power_of_2(most + 1), BLOCK=block)
