"""Triton: chain verification from raw logits in one launch, no row read that no verdict needs.

Equal to :func:`spin_core.verify.chain.verify_chain` with the same counters of the same random bits, so the
same seeds give the same tokens; only where two candidates tie up to rounding may the two differ.

A row of logits is cut into chunks, and a chunk of a row is the unit of work. Programs are as many as the
device holds and take units from one queue in the order of their tickets. Whoever finishes the last chunk of a
row joins the chunks' results, decides, and queues what its request needs next:

``READ``   peak, mass under it (online log-sum-exp) and argmax of a row. Then the accept test, by gathers: an
           accepted token queues the next row, a rejected one the draw from its residual. Greedy rows need
           nothing else.
``DRAW``   the exponential race over (p - q)+ of a row whose law is known. The normaliser of p has to be known
           before any column of (p - q)+ is, so these columns are loaded a second time: a moment after the
           first, so from the cache rather than from memory where it holds the rows in work (a row of 128256
           bf16 logits is 257 kB).
``BONUS``  the race over p of an unfiltered row, needing no normaliser and so no READ before it.

Both races are randomness.race's: groups of columns first, whose noise is 64 times less than the columns'
would be, then whoever decides lets the columns of the winning group race, loading these few again.

No row behind a rejection is touched, no softmax, mask or one-hot q is ever written. There is no deadlock
whatever the number of programs: a unit is only waited for while another program, already running, works on
what precedes it.

top-k and top-p: each is the smallest set of largest scores whose weight, number or mass, reaches a target.
The floor of that set is found by bisection on the ordered bit patterns of floats: exact, ties included,
without a sort.
"""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("spin_core.verify.kernel needs Triton, which this machine has not") from error

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from spin_core.draft.base import Draft
from spin_core.randomness import ACCEPT, FINAL, GROUP, RESIDUAL
from spin_core.sampling import SamplingBatch
from spin_core.verify.chain import Verdict, check_shapes
from spin_core.verify.progress import Progress

DTYPES = (torch.float32, torch.bfloat16, torch.float16)     # of logits; the arithmetic is fp32

_ACCEPT, _RESIDUAL = tl.constexpr(ACCEPT), tl.constexpr(RESIDUAL)
_READ, _DRAW, _BONUS = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
_INF = tl.constexpr(float("inf"))
_LOG2E = tl.constexpr(1.4426950408889634)
_NONE = tl.constexpr(2**31 - 1)             # neither a column nor a group
_GROUP, _FINAL = tl.constexpr(GROUP), tl.constexpr(FINAL)


@triton.jit
def _uniform(seed, position):
    """The accept test's number in [0, 1), as randomness.uniform makes it."""
    position = position.to(tl.uint32)
    zero = position * 0
    word, _, _, _ = tl.philox(seed, zero, position, zero + _ACCEPT, zero)
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08      # 2**-24


@triton.jit
def _speeds(seed, position, entrant, first):
    """1 / E for ``entrant`` (int32) of a race's round whose blocks begin at ``first``; E: see randomness.race."""
    block = (entrant // 4).to(tl.uint32) + first
    zero = block * 0
    a, b, c, d = tl.philox(seed, block, zero + position.to(tl.uint32), zero + _RESIDUAL, zero)
    which = entrant % 4
    word = tl.where(which < 2, tl.where(which == 0, a, b), tl.where(which == 2, c, d))
    x = tl.minimum((word.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)     # 2**-32; 1 - 2**-24
    # log1p(-x) = log(1 - x) x / lost, where `lost` is what the rounded 1 - x took away: precise however small x is
    rest = 1.0 - x
    lost = 1.0 - rest
    return tl.where(lost == 0.0, 1.0 / x, -lost / (tl.log(rest) * x))


@triton.jit
def _read(ROW, first, vocab, scale, greedy, BLOCK: tl.constexpr, TILES: tl.constexpr):
    """Online over one chunk: largest logit, sum of 2^((x - peak) scale), and, for a greedy row, the first
    argmax.

    The sum is NaN if the chunk holds NaN or +inf, and zero if it holds nothing finite.
    """
    peak = -_INF
    total = 0.0
    best = _NONE
    for tile in range(TILES):
        columns = first + tile * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(ROW + columns, mask=columns < vocab, other=-_INF).to(tl.float32)
        top = tl.max(x)
        if greedy & (top > peak):
            best = tl.min(tl.where(x == top, columns, _NONE))
        new = tl.maximum(peak, top)
        base = tl.where(new == -_INF, 0.0, new)
        total = total * tl.exp2((peak - base) * scale) + tl.sum(tl.exp2((x - base) * scale))
        peak = new
    return peak, total, best


@triton.jit
def _drafted_law(Q, MAP, columns, vocab, token, soft, SUBSET: tl.constexpr, SOFT: tl.constexpr):
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
def _draw(ROW, Q, MAP, first, vocab, scale, peak, inverse, floor, token, soft, seed, position,
          SUBSET: tl.constexpr, SOFT: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr):
    """The first rounds of the races over p and over (p - q)+ in one chunk: peak, mass, winning groups and
    speeds.

    ``peak`` and ``inverse`` (of the mass) of a known law; -inf and 1 where the law is not known: then speeds
    are relative to the peak returned. A NaN in q makes the residual's speed -1.
    """
    total = 0.0
    speed_p = 0.0
    speed_r = 0.0
    winner_p = _NONE
    winner_r = _NONE
    broken = 0
    for tile in range(TILES):
        start = first + tile * BLOCK
        group = start // _GROUP + tl.arange(0, BLOCK // _GROUP)
        columns = group[:, None] * _GROUP + tl.arange(0, _GROUP)[None, :]
        x = tl.load(ROW + columns, mask=columns < vocab, other=-_INF).to(tl.float32)
        x = tl.where(x < floor, -_INF, x)                           # not x >= floor: NaN has to stay
        new = tl.maximum(peak, tl.max(tl.max(x, 1), 0))
        base = tl.where(new == -_INF, 0.0, new)
        shrink = tl.exp2((peak - base) * scale)
        weight = tl.exp2((x - base) * scale) * inverse
        q = _drafted_law(Q, MAP, columns, vocab, token, soft, SUBSET, SOFT)
        broken = tl.maximum(broken, tl.max(tl.max((q != q).to(tl.int32), 1), 0))
        mass = tl.sum(weight, 1)
        total = total * shrink + tl.sum(mass, 0)
        speed_p = speed_p * shrink
        peak = new
        fast = _speeds(seed, position, group, 0)
        speed = mass * fast
        top = tl.max(speed, 0)
        if top > speed_p:
            speed_p = top
            winner_p = tl.min(tl.where(speed == top, group, _NONE), 0)
        speed = tl.sum(tl.where(weight > q, weight - q, 0.0), 1) * fast
        top = tl.max(speed, 0)
        if top > speed_r:
            speed_r = top
            winner_r = tl.min(tl.where(speed == top, group, _NONE), 0)
    return peak, total, speed_p, winner_p, tl.where(broken > 0, -1.0, speed_r), winner_r


@triton.jit
def _final(ROW, Q, MAP, group, vocab, scale, peak, inverse, floor, token, soft, seed, position, rest,
           SUBSET: tl.constexpr, SOFT: tl.constexpr):
    """The second round, among the columns of the winning group: over (p - q)+ if ``rest``, else over p."""
    within = tl.arange(0, _GROUP)
    columns = tl.minimum(group, (vocab - 1) // _GROUP) * _GROUP + within
    x = tl.load(ROW + columns, mask=columns < vocab, other=-_INF).to(tl.float32)
    x = tl.where(x < floor, -_INF, x)
    top = tl.where(rest, peak, tl.max(x))
    weight = tl.exp2((x - tl.where(top == -_INF, 0.0, top)) * scale)
    if rest:
        q = _drafted_law(Q, MAP, columns, vocab, token, soft, SUBSET, SOFT)
        weight = tl.where(weight * inverse > q, weight * inverse - q, 0.0)
    speed = weight / tl.max(weight) * _speeds(seed, position, within, _FINAL)
    return tl.min(tl.where(speed == tl.max(speed), columns, _NONE))


@triton.jit
def _weigh(ROW, vocab, floor, peak, scale, BLOCK: tl.constexpr):
    """Number and mass, in units of the peak's, of the logits of a row that are not below the floor."""
    number = 0.0
    mass = 0.0
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(ROW + columns, mask=columns < vocab, other=-_INF).to(tl.float32)
        kept = (x >= floor) & (columns < vocab)
        number += tl.sum(kept.to(tl.float32))
        mass += tl.sum(tl.where(kept, tl.exp2((x - peak) * scale), 0.0))
    return number, mass


@triton.jit
def _order(x):
    """A float's place among the floats, as int64: neighbours differ by one."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def _search(ROW, vocab, peak, scale, floor, number, mass, target, by_mass, BLOCK: tl.constexpr):
    """The highest floor above which the weight still reaches ``target``, from a floor above which it does.

    ``number`` and ``mass`` are the weights above ``floor``. Returns the new three.
    """
    low = _order(floor)
    high = _order(peak) + 1                                         # nothing is as high
    above = 0.0                                                     # the number from `high` on
    while (high - low > 1) & (number - above > 1.0):                # one logit between: it is the floor's
        middle = (low + high) >> 1
        bits = middle.to(tl.int32)
        trial = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)
        some, weight = _weigh(ROW, vocab, trial, peak, scale, BLOCK)
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
def _filter(ROW, vocab, peak, total, scale, top_k, top_p, min_p, BLOCK: tl.constexpr):
    """Floor and mass of what top-k, top-p and min-p leave of a row, each working on what those before have left."""
    floor = tl.full([], -_INF, tl.float32)
    number = vocab.to(tl.float32)
    if (top_k > 0) & (top_k < vocab):
        floor, number, total = _search(ROW, vocab, peak, scale, floor, number, total, top_k.to(tl.float32), False,
                                       BLOCK)
    if top_p < 1.0:
        floor, number, total = _search(ROW, vocab, peak, scale, floor, number, total, top_p * total, True, BLOCK)
    if min_p > 0.0:
        floor = tl.maximum(floor, peak + tl.log2(min_p) / scale)
        number, total = _weigh(ROW, vocab, floor, peak, scale, BLOCK)
    return floor, total


@triton.jit
def _entry(CU, TEMPERATURE, TOP_K, TOP_P, MIN_P, b, i):
    """The queue's word for request b going on at drafted token i (or its bonus): row, request, what to do."""
    plain = (tl.load(TEMPERATURE + b) > 0) & (tl.load(TOP_K + b) == 0) & (tl.load(TOP_P + b) >= 1) \
        & (tl.load(MIN_P + b) <= 0)
    phase = tl.where(plain & (i == tl.load(CU + b + 1)), _BONUS, _READ)
    return ((i + b) << 26) | (b << 2) | phase


@triton.jit
def _take(QUEUE, DONE, CU, TEMPERATURE, TOP_K, TOP_P, MIN_P, group, batch):
    """Wait for the queue's entry ``group``; 0 when all requests are done. The first ones are the requests' first rows."""
    if group < batch:
        entry = _entry(CU, TEMPERATURE, TOP_K, TOP_P, MIN_P, group, tl.load(CU + group))
    else:
        entry = tl.atomic_add(QUEUE + group, 0)
        done = tl.atomic_add(DONE, 0)
        while (entry == 0) & (done < batch):
            done = tl.atomic_add(DONE, 0)
            entry = tl.atomic_add(QUEUE + group, 0)
    return entry


# What changes from step to step must not compile the kernel anew, nor batch = 1 become a constant.
@triton.jit(do_not_specialize=["batch", "width", "chunks", "slots", "probs_stride"],
            do_not_specialize_on_alignment=["TOKENS", "CU", "PROB_ROW", "TEMPERATURE", "TOP_K", "TOP_P", "MIN_P", "SEED",
                                            "POSITION", "OUT", "ACCEPTED", "FAILED", "NEXT", "LAST", "SLOT", "LENGTHS",
                                            "PARTS", "WINNERS", "LAWS", "ARRIVED", "COUNTERS", "QUEUE"])
def _verify(LOGITS, TOKENS, CU, PROBS, PROB_ROW, MAP, TEMPERATURE, TOP_K, TOP_P, MIN_P, SEED, POSITION,
            OUT, ACCEPTED, FAILED, NEXT, LAST, SLOT, LENGTHS, PARTS, WINNERS, LAWS, ARRIVED, COUNTERS, QUEUE,
            batch, vocab, width, chunks, slots, logits_stride, probs_stride,
            SOFT: tl.constexpr, SUBSET: tl.constexpr, CACHES: tl.constexpr, CHUNKS: tl.constexpr, WIDTH: tl.constexpr,
            BLOCK: tl.constexpr, TILES: tl.constexpr, DRAWN: tl.constexpr):
    """COUNTERS: tickets taken, queue entries made, requests done. The rest: see :func:`verify_chain`."""
    batch = batch.to(tl.int64)
    ticket = tl.atomic_add(COUNTERS, 1)
    entry = _take(QUEUE, COUNTERS + 2, CU, TEMPERATURE, TOP_K, TOP_P, MIN_P, ticket // chunks, batch)
    while entry != 0:
        chunk = ticket % chunks
        phase = entry & 3
        b = (entry >> 2) & 0xFFFFFF
        row = entry >> 26
        i = row - b                                                 # this token's place in the draft
        start = tl.load(CU + b)
        end = tl.load(CU + b + 1)
        ROW = LOGITS + row * logits_stride
        temperature = tl.load(TEMPERATURE + b).to(tl.float32)
        greedy = temperature == 0.0
        scale = _LOG2E / tl.where(greedy, 1.0, tl.maximum(temperature, 1e-30))
        drafted = tl.load(TOKENS + i, mask=i < end, other=-1)       # -1: the bonus row
        law = tl.load(PROB_ROW + i, mask=i < end, other=-1)         # -1: one-hot
        seed = tl.load(SEED + b)
        position = tl.load(POSITION + b) + i - start

        # 1. This chunk.
        first = (chunk * (BLOCK * TILES)).to(tl.int32)
        parts = PARTS + b * 4 * CHUNKS
        winners = WINNERS + b * 2 * CHUNKS
        if phase == _READ:
            peak, total, best = _read(ROW, first, vocab, scale, greedy, BLOCK, TILES)
            tl.store(parts + chunk, peak)
            tl.store(parts + CHUNKS + chunk, total)
            tl.store(winners + chunk, best)
        else:
            known = phase == _DRAW
            peak = tl.load(LAWS + b * 3, mask=known, other=-_INF)
            inverse = 1.0 / tl.load(LAWS + b * 3 + 1, mask=known, other=1.0)
            floor = tl.load(LAWS + b * 3 + 2, mask=known, other=-_INF)
            peak, total, speed_p, winner_p, speed_r, winner_r = _draw(
                ROW, PROBS + law * probs_stride, MAP, first, vocab, scale, peak, inverse, floor, drafted, law >= 0,
                seed, position, SUBSET, SOFT, DRAWN, BLOCK * TILES // DRAWN)
            tl.store(parts + chunk, peak)
            tl.store(parts + CHUNKS + chunk, total)
            tl.store(parts + 2 * CHUNKS + chunk, speed_p)
            tl.store(parts + 3 * CHUNKS + chunk, speed_r)
            tl.store(winners + chunk, winner_p)
            tl.store(winners + CHUNKS + chunk, winner_r)
        tl.debug_barrier()                                          # all threads' stores before the arrival

        # 2. The last chunk to arrive decides for the row.
        if tl.atomic_add(ARRIVED + b, 1) % chunks == chunks - 1:
            at = tl.arange(0, CHUNKS)
            real = at < chunks
            peaks = tl.load(parts + at, mask=real, other=-_INF)
            peak = tl.max(peaks)
            base = tl.where(peak == -_INF, 0.0, peak)
            shrink = tl.exp2((peaks - base) * scale)
            total = tl.sum(tl.load(parts + CHUNKS + at, mask=real, other=0.0) * shrink)
            winner = tl.load(winners + at, mask=real, other=_NONE)
            lawful = (total > 0.0) & (total < _INF)                 # NaN is neither
            accepted = False
            draw = False
            if phase != _READ:
                speed = tl.load(parts + 2 * CHUNKS + at, mask=real, other=0.0) * shrink
                group = tl.min(tl.where(speed == tl.max(speed), winner, _NONE))
                speed = tl.load(parts + 3 * CHUNKS + at, mask=real, other=0.0)
                rest = (drafted >= 0) & (tl.max(speed) > 0.0) & (tl.min(speed) >= 0.0)      # else p = q: from p
                if rest:
                    winner = tl.load(winners + CHUNKS + at, mask=real, other=_NONE)
                    group = tl.min(tl.where(speed == tl.max(speed), winner, _NONE))
                known = phase == _DRAW
                inverse = 1.0 / tl.load(LAWS + b * 3 + 1, mask=known, other=1.0)
                floor = tl.load(LAWS + b * 3 + 2, mask=known, other=-_INF)
                token = _final(ROW, PROBS + law * probs_stride, MAP, group, vocab, scale, peak, inverse, floor, drafted,
                               law >= 0, seed, position, rest, SUBSET, SOFT)
            else:
                token = tl.min(tl.where(peaks == peak, winner, _NONE))
                if greedy:
                    accepted = lawful & (drafted == token)
                elif lawful:
                    top_k = tl.load(TOP_K + b)
                    top_p = tl.load(TOP_P + b).to(tl.float32)
                    min_p = tl.load(MIN_P + b).to(tl.float32)
                    floor, total = _filter(ROW, vocab, peak, total, scale, top_k, top_p, min_p, BLOCK)
                    x = tl.load(ROW + drafted, mask=drafted >= 0, other=-_INF).to(tl.float32)
                    p = tl.where(x < floor, 0.0, tl.exp2((x - peak) * scale) / total)
                    q = tl.where(drafted >= 0, 1.0, 0.0)
                    if SOFT:
                        column = drafted
                        if SUBSET:
                            column = tl.load(MAP + drafted, mask=drafted >= 0, other=-1).to(tl.int64)
                        soft = tl.load(PROBS + law * probs_stride + column, mask=(law >= 0) & (column >= 0), other=0.0)
                        q = tl.where(law >= 0, soft.to(tl.float32), q)
                    accepted = (drafted >= 0) & (_uniform(seed, position) * q < p)
                    draw = not accepted
                    if draw:
                        tl.store(LAWS + b * 3, peak)
                        tl.store(LAWS + b * 3 + 1, total)
                        tl.store(LAWS + b * 3 + 2, floor)
            if accepted | draw:
                follows = (row << 26) | (b << 2) | _DRAW
                if accepted:
                    follows = _entry(CU, TEMPERATURE, TOP_K, TOP_P, MIN_P, b, i + 1)
                tl.debug_barrier()                                  # all is read and written before others go on
                place = tl.atomic_add(COUNTERS + 1, 1) + batch
                tl.atomic_xchg(QUEUE + place, follows)
            else:
                column = tl.arange(0, WIDTH)
                count = tl.where(lawful, i - start, -1)
                kept = tl.load(TOKENS + start + column, mask=column < count, other=-1)
                kept = tl.where(column == count, token, kept)
                tl.store(OUT + b * width + column, kept, mask=column < width)
                tl.store(ACCEPTED + b, tl.maximum(count, 0))
                tl.store(FAILED + b, tl.where(lawful, 0, 1).to(tl.int8))
                if CACHES >= 0:                                     # nobody reads this request's position any more
                    after = position - (i - start) + tl.where(lawful, count + 1, 0)
                    tl.store(NEXT + b, after)
                    tl.store(LAST + b, token, mask=lawful)
                    slot = tl.load(SLOT + b)
                    for cache in tl.static_range(CACHES):
                        held = LENGTHS + cache * slots + slot
                        tl.store(held, tl.minimum(tl.load(held), after - 1), mask=lawful)
                tl.atomic_add(COUNTERS + 2, 1)
        ticket = tl.atomic_add(COUNTERS, 1)
        entry = _take(QUEUE, COUNTERS + 2, CU, TEMPERATURE, TOP_K, TOP_P, MIN_P, ticket // chunks, batch)


def verify_chain(logits: Tensor, draft: Draft, sampling: SamplingBatch, position: Tensor,
                 max_draft: int | None = None, progress: Progress | None = None, *, block: int = 4096,
                 tiles: int = 4, drawn: int = 2048, programs: int | None = None) -> Verdict:
    """:func:`spin_core.verify.chain.verify_chain` in one launch after one that clears the queue.

    ``logits [N + B, V]`` fp32, bf16 or fp16 with contiguous rows, on a CUDA device or in Triton's
    interpreter. ``max_draft``, if given, bounds the number of drafted tokens of a request; ``tokens`` then
    has ``max_draft + 1`` columns, and nothing here waits for the device. Without it the largest count is
    asked from the device.

    ``progress``, if given, is brought up to date in the same launch.

    ``block`` columns are loaded at a time (``drawn`` in a race, which keeps more about each; at least a
    race's group) and ``tiles`` blocks make a chunk; ``programs`` take chunks from the queue (default: two for
    each multiprocessor, as many as its registers allow).

    Raises ValueError if the shapes do not fit together or the logits are of another type.
    """
    check_shapes(logits, draft, sampling, position)
    batch, drafted = len(sampling), draft.tokens.shape[0]
    if logits.dtype not in DTYPES:
        raise ValueError(f"verify_chain: the kernel reads logits of fp32, bf16 or fp16, not {logits.dtype}")
    if max_draft is None:
        max_draft = int(draft.counts.max()) if batch else 0
    device, width, vocab = logits.device, max_draft + 1, logits.shape[1]
    tokens = torch.empty(batch, width, dtype=torch.int64, device=device)
    accepted = torch.empty(batch, dtype=torch.int64, device=device)
    failed = torch.empty(batch, dtype=torch.int8, device=device)
    if batch:
        logits = logits if logits.stride(1) == 1 else logits.contiguous()
        probs = draft.probs if draft.probs is not None and draft.probs.numel() else None
        probs = probs if probs is None or probs.stride(1) == 1 else probs.contiguous()
        subset = _columns(draft.ids, vocab) if probs is not None and draft.ids is not None else None
        block = min(block, max(GROUP, triton.next_power_of_2(vocab)))
        chunks = triton.cdiv(vocab, block * tiles)
        if programs is None:
            programs = 2 * torch.cuda.get_device_properties(device).multi_processor_count if logits.is_cuda else 2
        programs = min(programs, batch * chunks)
        # entries made: a READ or BONUS for each row and a DRAW for each request; programs wait beyond them
        entries = drafted + 2 * batch + triton.cdiv(programs, chunks) + 1
        width_of = triton.next_power_of_2(chunks)
        parts = torch.empty(batch, 4, width_of, dtype=torch.float32, device=device)
        winners = torch.empty(batch, 2, width_of, dtype=torch.int32, device=device)
        laws = torch.empty(batch, 3, dtype=torch.float32, device=device)
        shared = torch.zeros(batch + 3 + entries, dtype=torch.int64, device=device)
        _verify[programs,](
            logits, draft.tokens, draft.cu, logits if probs is None else probs, draft.prob_row,
            draft.tokens if subset is None else subset, sampling.temperature, sampling.top_k, sampling.top_p,
            sampling.min_p, sampling.seed, position, tokens, accepted, failed,
            *((position,) * 4 if progress is None else
              (progress.position, progress.last, progress.slot, progress.lengths)), parts, winners, laws,
            shared, shared[batch:], shared[batch + 3:], batch, vocab, width, chunks,
            0 if progress is None else progress.lengths.stride(0), logits.stride(0),
            0 if probs is None else probs.stride(0), SOFT=probs is not None, SUBSET=subset is not None,
            CACHES=-1 if progress is None else len(progress.lengths), CHUNKS=width_of,
            WIDTH=triton.next_power_of_2(width), BLOCK=block, TILES=tiles, DRAWN=min(drawn, block), num_warps=8, maxnreg=128)
    return Verdict(accepted, tokens, failed.view(torch.bool))


_maps: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _columns(ids: Tensor, vocab: int) -> Tensor:
    """``[V]`` int32: the column of each target id in a draft vocabulary, -1 outside. Made once for each ``ids``."""
    known = _maps.get(ids)
    if known is None or known.shape[0] != vocab:
        known = torch.full((vocab,), -1, dtype=torch.int32, device=ids.device)
        known[ids] = torch.arange(ids.shape[0], dtype=torch.int32, device=ids.device)
        _maps[ids] = known
    return known
