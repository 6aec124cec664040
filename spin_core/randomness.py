"""Random numbers as a pure function of (seed, position, purpose): nothing to advance, save or share.

A generator with state would tie a request's text to the order in which its batch was served. Philox 4x32-10
(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a 128-bit counter and a 64-bit
key into 128 random bits, so every draw below names its own counter and reads the same bits in whatever batch,
slot or order it is asked for, in torch here as in Triton (``tl.philox``).

The counter of a draw is ``(block, position, purpose, base)``:

``block``     which four items of a draw, see :func:`exponential_race`; 0 for a uniform number
``position``  absolute index in the sequence (prompt + output) of the token that is being decided
``purpose``   DRAFT, ACCEPT or RESIDUAL, so that the three draws a position may need are independent
``base``      the committed length when a draft was made: a position drafted again gets fresh noise. The other
              two purposes spend their noise once per position and leave it 0
"""

import torch
from torch import Tensor

DRAFT = 0     # drawing a token from a drafter's distribution
ACCEPT = 1    # testing a drafted token
RESIDUAL = 2  # drawing from the target: residual, bonus, or a plain step

GROUP = 64          # columns that take part in the first round of a draw as one
FINAL = 1 << 31     # `block` of a draw's second round

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xCD9E8D57, 0xD2511F53)     # of c2 and of c0
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox(c0: Tensor | int, c1: Tensor | int, c2: Tensor | int, c3: Tensor | int, seed: Tensor | int
           ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox 4x32-10: four 32-bit words for every counter.

    Counter words are uint32 values, ``seed`` is 64 bits whose low half is the first key word; all are held in
    int64 and broadcast against each other. Returns four int64 tensors with values in [0, 2**32).
    """
    words = (c0, c1, c2, c3, seed)
    device = next((x.device for x in words if isinstance(x, Tensor)), None)
    # full, where a copy from the host would do: for a copy a CUDA device would be waited for
    c0, c1, c2, c3, key = (x.to(torch.int64) if isinstance(x, Tensor) else
                           torch.full((), x, dtype=torch.int64, device=device) for x in words)
    keys = torch.broadcast_tensors(key & _WORD, (key >> 32) & _WORD)
    # Two words are worked on at once: a small draw costs by the number of operations.
    shape = torch.broadcast_shapes(*(x.shape for x in (c0, c1, c2, c3, key)))
    pair = [-1] + [1] * len(shape)
    multiplied = torch.stack([(x & _WORD).expand(shape) for x in (c2, c0)])     # c2, c0: what is multiplied
    added = torch.stack([x.expand(shape) for x in (c1, c3)])                    # c1, c3: what is only added
    keys = torch.stack(keys).view(2, *[1] * (len(shape) - keys[0].dim()), *keys[0].shape)
    multipliers, steps = (torch.stack([torch.full((), x, dtype=torch.int64, device=device) for x in two]).view(pair)
                          for two in (_MULTIPLIERS, _KEY_STEPS))
    rounds = torch.arange(10, device=device).view(-1, *[1] * len(pair))
    for key in (keys + rounds * steps).bitwise_and_(_WORD):
        # int64 products wrap modulo 2**64, which keeps all 64 bits of a 32 x 32 bit product: the high word is
        # in bits 32-63 (the mask drops the copies of the sign that >> shifts in), the low word in bits 0-31.
        # c1 and c3 only ever meet a xor, so what they carry above bit 31 is masked together with the rest.
        product = multiplied * multipliers
        # c0 comes from the product of c2, c2 from that of c0: they are held in the order c2, c0
        multiplied = (product >> 32).bitwise_xor_(added).bitwise_xor_(key).bitwise_and_(_WORD).flip(0)
        added = product
    return multiplied[1], added[0] & _WORD, multiplied[0], added[1] & _WORD


def uniform(seed: Tensor, position: Tensor, purpose: int, base: Tensor | int = 0) -> Tensor:
    """One number in [0, 1) per row, a multiple of 2**-24: ``seed, position [R]`` int64 -> ``[R]`` float32."""
    word = philox(0, position, purpose, base, seed)[0]
    return (word >> 8).to(torch.float32) * 2.0**-24


def exponential_race(weights: Tensor, seed: Tensor, position: Tensor, purpose: int, base: Tensor | int = 0) -> Tensor:
    """Draw one column per row with probability proportional to its weight.

    ``weights [R, V]`` float32 or float64, finite and >= 0, of any positive sum that is a number; ``seed, position [R]``
    int64; ``base`` an int or ``[R]``. Returns ``[R]`` int64 columns, -1 for a row that has no distribution (all zero,
    NaN or infinite).

    This is Gumbel-max sampling, written as an exponential race: the column with the smallest E / w, E exponential
    noise, wins with P = w / sum w (-log E is Gumbel noise). No cumulative sum is formed that could fall short of 1, and
    a zero weight never wins. Two rounds, so that noise is made for a few hundred items instead of V: first groups of
    :data:`GROUP` neighbours with their sums (``block`` g // 4 of group g, word g % 4), then the columns of the winning
    group (``block`` FINAL + i // 4 of the group's column i): (w_group / sum w) (w / w_group) = w / sum w. The noise has
    32 bits, so each round's probabilities are exact to about 2**-32.
    """
    columns = weights.shape[-1]
    whole = columns // GROUP * GROUP
    masses = weights[:, :whole].unflatten(-1, (whole // GROUP, GROUP)).sum(-1)
    if whole < columns:
        masses = torch.cat([masses, weights[:, whole:].sum(-1, keepdim=True)], -1)
    groups = masses.shape[-1]
    first = (groups + 3) // 4 if groups > 1 else 0      # blocks of the first round
    blocks = [torch.arange(n, device=weights.device) for n in (first, (min(columns, GROUP) + 3) // 4)]
    times = _exponential(torch.cat([blocks[0], FINAL + blocks[1]]), seed, position, purpose, base)
    group = _winner(masses, times[:, :groups]) if groups > 1 else torch.zeros_like(seed)
    column = group.unsqueeze(-1) * GROUP + torch.arange(min(columns, GROUP), device=weights.device)
    inside = weights.gather(1, column.clamp(max=columns - 1)).masked_fill(column >= columns, 0)
    winner = group * GROUP + _winner(inside, times[:, 4 * first:][:, :column.shape[1]])
    top = masses.amax(-1)
    return torch.where((top > 0) & (top < torch.inf), winner, -1)


def _exponential(blocks: Tensor, seed: Tensor, position: Tensor, purpose: int, base: Tensor | int) -> Tensor:
    """``[R, 4 n]`` float32: the exponential times in n ``blocks`` of each row.

    E = -log1p(-x), x = (word + 1/2) 2**-32: precise near 0, where the winners are. Rounding must not make x
    one: E would be infinite.
    """
    base = base.unsqueeze(-1) if isinstance(base, Tensor) else base
    words = philox(blocks, position.unsqueeze(-1), purpose, base, seed.unsqueeze(-1))
    noise = torch.stack([word.to(torch.float32) for word in words], -1).flatten(1)
    return noise.add_(0.5).mul_(-(2.0**-32)).clamp_(min=2.0**-24 - 1).log1p_().neg_()


def _winner(weights: Tensor, times: Tensor) -> Tensor:
    """``[R]``: the column with the largest w / E. Divided by the row's largest weight, the best is at least 1 / max E:
    tiny weights cannot underflow into a tie with the zeros."""
    return (weights / weights.amax(-1, keepdim=True)).div_(times).argmax(-1)
