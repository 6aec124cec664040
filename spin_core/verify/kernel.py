"""Triton: chain verification from raw logits in one launch, no row read that no verdict needs.

Equal to :func:`spin_core.verify.chain.verify_chain` with the same counters of the same random bits, so the
same seeds give the same tokens; only where two candidates tie up to rounding may the two differ.

A row of logits is cut into chunks, and a chunk of a row is the unit of work. Programs are as many as the
device holds and take units from one queue (:mod:`kernel_queue`). The program that finishes a row's last chunk
joins the chunks' results, decides, and queues what the request needs next. A row is read in one of three ways
(:mod:`kernel_rows`):

``RACE``   once, for everything: mass and peak for the accept test, and the draw (an exponential race, which is
           Gumbel-max sampling: see :mod:`spin_core.randomness`) of the token that follows if there is
           no draft or it is rejected. Rows that sample without filters, behind which a bonus is drawn or whose
           draft is one-hot.
``READ``   once, for the accept test: mass, peak and argmax. Greedy rows need nothing else. Behind it
``DRAW``   a second time, for the draw from (p - q)+, if a sampled draft was rejected: no column of (p - q)+ is known
           before the normaliser of p is. It comes a moment after the first, so from the cache rather than from
           memory where that holds the rows in work (a row of 128256 bf16 logits is 257 kB). Filtered rows are
           drawn from in the same way, and read besides as often as :mod:`kernel_filters` says.

Each row up to the deciding one is read once, a rejected one of a sampled draft twice, none behind it at all. The rest
are gathers: of each tested token, and of the group of :data:`GROUP` columns that won a draw. No softmax, mask or
one-hot q is ever written.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from spin_core.draft.base import Draft
from spin_core.randomness import GROUP
from spin_core.sampling import SamplingBatch
from spin_core.verify.chain import Verdict, check_shapes
from spin_core.verify.kernel_filters import filtered
from spin_core.verify.kernel_noise import uniform
from spin_core.verify.kernel_queue import DRAW, RACE, READ, entry, take, word
from spin_core.verify.kernel_rows import INF, NONE, draw, final, exponential_race, read
from spin_core.verify.progress import Progress

DTYPES = (torch.float32, torch.bfloat16, torch.float16)     # of logits; the arithmetic is fp32

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _drafted_probability(PROBS, MAP, row, token, probs_stride, SUBSET: tl.constexpr, SOFT: tl.constexpr):
    """q of a drafted token: its entry in ``row`` of PROBS, or one (``row`` negative: one-hot)."""
    q = 1.0
    if SOFT:
        column = token
        if SUBSET:
            column = tl.load(MAP + token, mask=token >= 0, other=-1).to(tl.int64)
        soft = tl.load(PROBS + row * probs_stride + column, mask=(row >= 0) & (column >= 0), other=0.0)
        q = tl.where(row >= 0, soft.to(tl.float32), 1.0)
    return q


@triton.jit
def _finish(TOKENS, OUT, ACCEPTED, FAILED, NEXT, LAST, SLOT, LENGTHS, b, start, count, token, finite, position, width,
            slots, CACHES: tl.constexpr, WIDTH: tl.constexpr):
    """Write request b's verdict, ``count`` accepted tokens and ``token``, and where it stands now."""
    column = tl.arange(0, WIDTH)
    count = tl.where(finite, count, -1)
    kept = tl.load(TOKENS + start + column, mask=column < count, other=-1)
    kept = tl.where(column == count, token, kept)
    tl.store(OUT + b * width + column, kept, mask=column < width)
    tl.store(ACCEPTED + b, tl.maximum(count, 0))
    tl.store(FAILED + b, tl.where(finite, 0, 1).to(tl.int8))
    if CACHES >= 0:                                     # this request's position is not read any more
        after = position + count + 1
        tl.store(NEXT + b, after)
        tl.store(LAST + b, token, mask=finite)
        slot = tl.load(SLOT + b)
        for cache in tl.static_range(CACHES):
            held = LENGTHS + cache * slots + slot
            tl.store(held, tl.minimum(tl.load(held), after - 1), mask=finite)


# What changes from step to step must not compile the kernel anew, nor batch = 1 become a constant.
@triton.jit(do_not_specialize=["batch", "width", "chunks", "slots", "probs_stride"],
            do_not_specialize_on_alignment=["TOKENS", "CU", "PROB_ROW", "TEMPERATURE", "TOP_K", "TOP_P", "MIN_P",
                                            "SEED", "POSITION", "OUT", "ACCEPTED", "FAILED", "NEXT", "LAST", "SLOT",
                                            "LENGTHS", "PARTS", "WINNERS", "DISTRIBUTIONS", "ARRIVED", "COUNTERS",
                                            "QUEUE"])
def _verify(LOGITS, TOKENS, CU, PROBS, PROB_ROW, MAP, TEMPERATURE, TOP_K, TOP_P, MIN_P, SEED, POSITION,
            OUT, ACCEPTED, FAILED, NEXT, LAST, SLOT, LENGTHS, PARTS, WINNERS, DISTRIBUTIONS, ARRIVED, COUNTERS, QUEUE,
            batch, vocab, width, chunks, slots, logits_stride, probs_stride,
            SOFT: tl.constexpr, SUBSET: tl.constexpr, CACHES: tl.constexpr, CHUNKS: tl.constexpr, WIDTH: tl.constexpr,
            BLOCK: tl.constexpr, TILES: tl.constexpr, DRAWN: tl.constexpr):
    """COUNTERS: tickets taken, queue entries made, requests done. PARTS, WINNERS: what the chunks of a request's row
    found. DISTRIBUTIONS: peak, mass and floor of a row that is to be drawn from. The rest: see :func:`verify_chain`."""
    batch = batch.to(tl.int64)
    ticket = tl.atomic_add(COUNTERS, 1)
    found = take(QUEUE, COUNTERS + 2, CU, PROB_ROW, TEMPERATURE, TOP_K, TOP_P, MIN_P, ticket // chunks, batch, SOFT)
    while found != 0:
        chunk = ticket % chunks
        phase = found & 3
        b = (found >> 2) & 0xFFFFFF
        row = found >> 26
        i = row - b                                                 # this token's place in the draft
        start = tl.load(CU + b)
        end = tl.load(CU + b + 1)
        ROW = LOGITS + row * logits_stride
        temperature = tl.load(TEMPERATURE + b).to(tl.float32)
        greedy = temperature == 0.0
        scale = _LOG2E / tl.where(greedy, 1.0, temperature)
        drafted = tl.load(TOKENS + i, mask=i < end, other=-1)       # -1: the bonus row
        q_row = tl.load(PROB_ROW + i, mask=i < end, other=-1)         # -1: one-hot
        Q = PROBS + q_row * probs_stride
        seed = tl.load(SEED + b)
        position = tl.load(POSITION + b)
        here = position + i - start

        # 1. This chunk.
        first = (chunk * (BLOCK * TILES)).to(tl.int32)
        parts = PARTS + b * 4 * CHUNKS                              # peaks, masses, scores of one draw or two
        winners = WINNERS + b * 2 * CHUNKS
        known = phase == DRAW
        peak = tl.load(DISTRIBUTIONS + b * 3, mask=known, other=-INF)
        inverse = 1.0 / tl.load(DISTRIBUTIONS + b * 3 + 1, mask=known, other=1.0)
        floor = tl.load(DISTRIBUTIONS + b * 3 + 2, mask=known, other=-INF)
        if phase == READ:
            peak, total, winner = read(ROW, first, vocab, scale, greedy, BLOCK, TILES)
        elif phase == RACE:
            peak, total, score, winner = exponential_race(ROW, first, vocab, scale, drafted, seed, here, DRAWN,
                                                           BLOCK * TILES // DRAWN)
            tl.store(parts + 2 * CHUNKS + chunk, score)
        else:
            total, score, winner, score_p, winner_p = draw(
                ROW, Q, MAP, first, vocab, scale, peak, inverse, floor, drafted, q_row >= 0, seed, here, SUBSET,
                SOFT, DRAWN, BLOCK * TILES // DRAWN)
            tl.store(parts + 2 * CHUNKS + chunk, score)
            tl.store(parts + 3 * CHUNKS + chunk, score_p)
            tl.store(winners + CHUNKS + chunk, winner_p)
        tl.store(parts + chunk, peak)
        tl.store(parts + CHUNKS + chunk, total)
        tl.store(winners + chunk, winner)
        tl.debug_barrier()                                          # all threads' stores before the arrival

        # 2. The last chunk to arrive decides for the row.
        if tl.atomic_add(ARRIVED + b, 1) % chunks == chunks - 1:
            at = tl.arange(0, CHUNKS)
            real = at < chunks
            peaks = tl.load(parts + at, mask=real, other=-INF)
            peak = tl.max(peaks)
            shrink = tl.exp2((peaks - tl.where(peak == -INF, 0.0, peak)) * scale)
            total = tl.sum(tl.load(parts + CHUNKS + at, mask=real, other=0.0) * shrink)
            best_of = tl.load(winners + at, mask=real, other=NONE)
            finite = (total > 0.0) & (total < INF)                  # NaN is neither
            token = tl.min(tl.where(peaks == peak, best_of, NONE))   # of a greedy row the argmax
            accepted = finite & greedy & (drafted == token)
            again = False
            # 2a. The accept test.
            if finite & (phase != DRAW) & (not greedy):
                if phase == READ:
                    floor, total = filtered(ROW, vocab, peak, total, scale, tl.load(TOP_K + b),
                                            tl.load(TOP_P + b).to(tl.float32), tl.load(MIN_P + b).to(tl.float32), BLOCK)
                x = tl.load(ROW + drafted, mask=drafted >= 0, other=-INF).to(tl.float32)
                p = tl.where(x < floor, 0.0, tl.exp2((x - peak) * scale) / total)
                q = _drafted_probability(PROBS, MAP, q_row, drafted, probs_stride, SUBSET, SOFT)
                accepted = (drafted >= 0) & (uniform(seed, here) * q < p)
                again = (phase == READ) & (not accepted)
            # 2b. The draw.
            if (phase != READ) & (not accepted):
                score_of = tl.load(parts + 2 * CHUNKS + at, mask=real, other=0.0)
                score_of = tl.where(phase == RACE, score_of * shrink, score_of)
                rest = (phase == DRAW) & (tl.max(score_of) > 0.0) & (tl.min(score_of) >= 0.0)
                if (phase == DRAW) & (not rest):                    # p = q up to rounding: from p itself
                    score_of = tl.load(parts + 3 * CHUNKS + at, mask=real, other=0.0)
                    best_of = tl.load(winners + CHUNKS + at, mask=real, other=NONE)
                group = tl.min(tl.where(score_of == tl.max(score_of), best_of, NONE))
                token = final(ROW, Q, MAP, group, vocab, scale, peak, inverse, floor, drafted, q_row >= 0,
                              phase == RACE, rest, seed, here, SUBSET, SOFT)
            # 2c. What follows.
            if accepted | again:
                follows = word(row, b, DRAW)
                if accepted:
                    follows = entry(CU, PROB_ROW, TEMPERATURE, TOP_K, TOP_P, MIN_P, b, i + 1, SOFT)
                else:
                    tl.store(DISTRIBUTIONS + b * 3, peak)
                    tl.store(DISTRIBUTIONS + b * 3 + 1, total)
                    tl.store(DISTRIBUTIONS + b * 3 + 2, floor)
                tl.debug_barrier()                                  # all is read and written before others go on
                place = tl.atomic_add(COUNTERS + 1, 1) + batch
                tl.atomic_xchg(QUEUE + place, follows)
            else:
                _finish(TOKENS, OUT, ACCEPTED, FAILED, NEXT, LAST, SLOT, LENGTHS, b, start, i - start, token, finite,
                        position, width, slots, CACHES, WIDTH)
                tl.atomic_add(COUNTERS + 2, 1)
        ticket = tl.atomic_add(COUNTERS, 1)
        found = take(QUEUE, COUNTERS + 2, CU, PROB_ROW, TEMPERATURE, TOP_K, TOP_P, MIN_P, ticket // chunks, batch, SOFT)


def verify_chain(logits: Tensor, draft: Draft, sampling: SamplingBatch, position: Tensor,
                 max_draft: int | None = None, progress: Progress | None = None, *, block: int = 4096,
                 tiles: int = 4, drawn: int = 2048, programs: int | None = None) -> Verdict:
    """:func:`spin_core.verify.chain.verify_chain` in one launch after one that clears the queue.

    ``logits [N + B, V]`` fp32, bf16 or fp16 with contiguous rows, on a CUDA device or in Triton's
    interpreter. ``max_draft`` and ``progress``: see :func:`spin_core.verify.verify_chain`.

    ``block`` columns are loaded at a time (``drawn`` where tokens are drawn, which keeps more about each; at
    least :data:`GROUP`) and ``tiles`` blocks make a chunk; ``programs`` take chunks from the queue (default: two for
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
        # entries made: a READ or RACE for each row and a DRAW for each request; programs wait beyond them
        entries = drafted + 2 * batch + triton.cdiv(programs, chunks) + 1
        width_of = triton.next_power_of_2(chunks)
        parts = torch.empty(batch, 4, width_of, dtype=torch.float32, device=device)
        winners = torch.empty(batch, 2, width_of, dtype=torch.int32, device=device)
        distributions = torch.empty(batch, 3, dtype=torch.float32, device=device)
        shared = torch.zeros(batch + 3 + entries, dtype=torch.int64, device=device)
        _verify[programs,](
            logits, draft.tokens, draft.cu, logits if probs is None else probs, draft.prob_row,
            draft.tokens if subset is None else subset, sampling.temperature, sampling.top_k, sampling.top_p,
            sampling.min_p, sampling.seed, position, tokens, accepted, failed,
            *((position,) * 4 if progress is None else
              (progress.position, progress.last, progress.slot, progress.lengths)), parts, winners, distributions,
            shared, shared[batch:], shared[batch + 3:], batch, vocab, width, chunks,
            0 if progress is None else progress.lengths.stride(0), logits.stride(0),
            0 if probs is None else probs.stride(0), SOFT=probs is not None, SUBSET=subset is not None,
            CACHES=-1 if progress is None else len(progress.lengths), CHUNKS=width_of,
            WIDTH=triton.next_power_of_2(width), BLOCK=block, TILES=tiles, DRAWN=min(drawn, block), num_warps=8,
            maxnreg=128)
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
