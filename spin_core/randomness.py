"""Random numbers as a pure function of (seed, position, purpose): nothing to advance, save or share.

A generator with state would tie a request's text to the order in which its batch was served. Philox 4x32-10
(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a 128-bit counter and a 64-bit
key into 128 random bits, so every draw below names its own counter and reads the same bits in whatever batch,
slot or order it is asked for, in torch here as in Triton (``tl.philox``).

The counter of a draw is ``(block, position, purpose, base)``:

``block``     which four columns of a race; 0 for a lone uniform
``position``  absolute index in the sequence (prompt + output) of the token that is being decided
``purpose``   DRAFT, ACCEPT or RESIDUAL, so that the three draws a position may need are independent
``base``      the committed length when a draft was made: a position drafted again gets fresh noise. The other
              two purposes spend their noise once per position and leave it 0
"""

from __future__ import annotations

import torch
from torch import Tensor

DRAFT = 0     # drawing a token from a drafter's law
ACCEPT = 1    # testing a drafted token
RESIDUAL = 2  # drawing from the target: residual, bonus, or a plain step

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox(c0: Tensor | int, c1: Tensor | int, c2: Tensor | int, c3: Tensor | int, seed: Tensor | int
           ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox 4x32-10: four 32-bit words for every counter.

    Counter words are uint32 values, ``seed`` is 64 bits whose low half is the first key word; all are held in
    int64 and broadcast against each other. Returns four int64 tensors with values in [0, 2**32).
    """
    words = (c0, c1, c2, c3, seed)
    device = next((x.device for x in words if isinstance(x, Tensor)), None)
    c0, c1, c2, c3, key = (torch.as_tensor(x, dtype=torch.int64, device=device) for x in words)
    c0, c2, k0, k1 = c0 & _WORD, c2 & _WORD, key & _WORD, (key >> 32) & _WORD
    for _ in range(10):
        # int64 products wrap modulo 2**64, which keeps all 64 bits of a 32 x 32 bit product: the high word is
        # in bits 32-63 (the mask drops the copies of the sign that >> shifts in), the low word in bits 0-31.
        # c1 and c3 only ever meet a xor, so what they carry above bit 31 is masked together with the rest.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = ((product1 >> 32) ^ c1 ^ k0) & _WORD, product1
        c2, c3 = ((product0 >> 32) ^ c3 ^ k1) & _WORD, product0
        k0, k1 = k0 + _KEY_STEPS[0] & _WORD, k1 + _KEY_STEPS[1] & _WORD
    return c0, c1 & _WORD, c2, c3 & _WORD


def uniform(seed: Tensor, position: Tensor, purpose: int, base: Tensor | int = 0) -> Tensor:
    """One number in [0, 1) per row, a multiple of 2**-24: ``seed, position [R]`` int64 -> ``[R]`` float32."""
    word = philox(0, position, purpose, base, seed)[0]
    return (word >> 8).to(torch.float32) * 2.0**-24


def race(weights: Tensor, seed: Tensor, position: Tensor, purpose: int, base: Tensor | int = 0) -> Tensor:
    """Draw one column per row with probability proportional to its weight.

    ``weights [R, V]`` float32 or float64, finite and >= 0, of any positive sum; ``seed, position [R]`` int64;
    ``base`` an int or ``[R]``. Returns ``[R]`` int64 columns, -1 for a row that has no law (all zero, NaN or
    infinite): the caller knows whose row it is.

    Column v gets an exponential time E_v and the first to arrive, min E_v / w_v, wins: P(v) = w_v / sum w. No
    cumulative sum is formed that could fall short of 1, and a zero-weight column never arrives. The noise has
    32 bits, so probabilities are exact to about 2**-32; a column much rarer than that is never drawn.
    """
    columns = weights.shape[-1]
    blocks = torch.arange((columns + 3) // 4, device=weights.device)
    base = base.unsqueeze(-1) if isinstance(base, Tensor) else base
    words = philox(blocks, position.unsqueeze(-1), purpose, base, seed.unsqueeze(-1))
    noise = torch.stack([word.to(torch.float32) for word in words], -1).flatten(1)[:, :columns]
    # E = -log1p(-x), x = (word + 1/2) 2**-32: precise near 0, where races are won. Rounding must not make x
    # one, or a column with weight would take forever to arrive.
    noise = noise.add_(0.5).mul_(-(2.0**-32)).clamp_(min=2.0**-24 - 1).log1p_().neg_()
    # Divided by its largest weight, a row has a best speed of at least 1 / max E: tiny weights cannot
    # underflow into a tie with the zeros.
    top = weights.amax(-1, keepdim=True)
    winner = (weights / top).div_(noise).argmax(-1)
    return torch.where(((top > 0) & (top < torch.inf)).squeeze(-1), winner, -1)
