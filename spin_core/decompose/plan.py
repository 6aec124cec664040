"""How a ragged batch is cut up for attention: whole requests, or pieces packed into rectangles.

A request attends ``length`` keys with ``q_len`` queries. A padded batch is as wide as its longest request; SPIN (arXiv
2503.15921) cuts long requests into pieces of similar width instead, R(W) = sum_i ceil(l_i / W) of them, with an
indicator M [B, R] that says which request a piece belongs to. Narrow pieces waste few keys and values, but every piece
needs its own copy of its request's queries and the pieces' results have to be merged. :func:`plan` weighs the two with
a device's measured costs.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import NamedTuple

import numpy as np

from spin_core.decompose.costs import Costs, priced

STRATEGIES = ("auto", "padded", "grouped", "decomposed", "per-request")
LARGE = 16          # a request with more queries than this reads a prompt: its products are big enough on their own
NARROWEST = 16      # keys per piece, at the least, in the width search
MARGIN = 0.97       # predictions err: a plan with pools must be predicted to save at least 3 %


@dataclass(frozen=True)
class Piece:
    """Keys ``start`` to ``stop`` (not included) of one request."""

    request: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Pool:
    """Pieces that are computed together, each in a row of ``width`` keys and ``queries`` queries."""

    pieces: tuple[Piece, ...]
    queries: int

    @functools.cached_property
    def width(self) -> int:
        return max(piece.size for piece in self.pieces)

    @property
    def requests(self) -> tuple[int, ...]:
        """The requests in order of appearance. All pieces of a request are neighbours."""
        return tuple(dict.fromkeys(piece.request for piece in self.pieces))


@dataclass(frozen=True)
class Plan:
    """What is computed together: ``pools`` of pieces, and ``unpooled`` requests, read where they are.

    ``seconds`` is the predicted time of one layer, None where nothing was predicted; ``considered`` the same for every
    width that was weighed, whether pieces were the cheapest plan or not.
    """

    strategy: str
    lengths: tuple[int, ...]
    q_lens: tuple[int, ...]
    pools: tuple[Pool, ...]
    unpooled: tuple[int, ...]
    seconds: float | None = None
    considered: dict[int, float] = field(default_factory=dict, repr=False, compare=False)

    @property
    def pieces(self) -> list[Piece]:
        """Every piece: those of the pools, then the requests that stay whole."""
        return [p for pool in self.pools for p in pool.pieces] + [Piece(b, 0, self.lengths[b]) for b in self.unpooled]

    @property
    def width(self) -> int:
        """Keys in the widest row of a pool; 0 when nothing is pooled."""
        return max((pool.width for pool in self.pools), default=0)

    @property
    def indicator(self) -> np.ndarray:
        """The paper's M, bool ``[B, R]``: request b owns piece r (in the order of ``pieces``)."""
        owners = np.array([piece.request for piece in self.pieces], dtype=int)
        return owners[None] == np.arange(len(self.lengths))[:, None]

    @property
    def kv_true(self) -> int:
        """Keys that are needed: the sum of the lengths of the requests with queries."""
        return sum(length for length, q in zip(self.lengths, self.q_lens) if q)

    @property
    def kv_touched(self) -> int:
        """Keys that are computed on, padding included."""
        return sum(pool.width * len(pool.pieces) for pool in self.pools) + sum(self.lengths[b] for b in self.unpooled)

    @property
    def q_touched(self) -> int:
        """Rows of queries that are computed on: copies and padding included."""
        return sum(pool.queries * len(pool.pieces) for pool in self.pools) + sum(self.q_lens[b] for b in self.unpooled)

    def describe(self) -> str:
        """The plan in words, and why."""
        return import_module("spin_core.lab.plans").describe(self)


def plan(lengths: Sequence[int], q_lens: Sequence[int], strategy: str = "auto", *, costs: Costs | None = None,
         width: int | None = None, max_len: int | None = None) -> Plan:
    """Plan the attention of one step; all layers share it.

    ``lengths [B]``: keys that each request attends, its in-flight tokens included. ``q_lens [B]``: its in-flight
    tokens; 0 asks for nothing. Strategies:

    - "per-request": no pools: no padding, no copies, one call each;
    - "padded": one rectangle, as wide as the longest request and as high as the longest draft;
    - "grouped": requests of equal length and equal draft share a rectangle;
    - "decomposed": SPIN: pieces of one width, the cheapest under ``costs`` or ``width`` if given. Without either,
      the width that touches the fewest keys among those with at most twice as many pieces as requests;
    - "auto": the cheapest of all of them under ``costs``, where decomposition may leave requests unpooled.
      Without costs it is "per-request".

    A request with more than ``LARGE`` queries stays unpooled except in "padded". Raises ValueError for lengths that
    cannot be: none at all, more queries than keys, or more keys than ``max_len``.
    """
    _check(lengths, q_lens, strategy, width, max_len)
    lengths, q_lens = tuple(map(int, lengths)), tuple(map(int, q_lens))
    asking = [b for b, q in enumerate(q_lens) if q]
    if strategy == "auto" and costs is None or not asking:
        strategy = "per-request"
    if strategy == "per-request":
        return priced(Plan(strategy, lengths, q_lens, (), tuple(asking)), costs)
    if strategy == "padded":
        pool = Pool(tuple(Piece(b, 0, lengths[b]) for b in asking), max(q_lens))
        return priced(Plan(strategy, lengths, q_lens, (pool,), ()), costs)
    small = [b for b in asking if q_lens[b] <= LARGE]
    large = tuple(b for b in asking if q_lens[b] > LARGE)
    if not small:
        return priced(Plan(strategy, lengths, q_lens, (), large), costs)
    if strategy == "grouped":
        return priced(_grouped(lengths, q_lens, small, large), costs)
    if strategy == "decomposed":
        return _decomposed(lengths, q_lens, small, large, costs, width)
    best = pieces = _decomposed(lengths, q_lens, small, large, costs, width, may_stay=True)
    if len(set(zip(lengths, q_lens))) < len(lengths):      # two requests of one shape: there is a group
        group = priced(_grouped(lengths, q_lens, small, large), costs)
        best = group if group.seconds < best.seconds * MARGIN else best
    return Plan("auto", lengths, q_lens, best.pools, best.unpooled, best.seconds, pieces.considered)


def cut(request: int, length: int, width: int) -> list[Piece]:
    """``length`` keys in ceil(length / width) pieces whose sizes differ by one at most.

    Equal pieces instead of full ones and a rest: the row may then be narrower, and no piece is so small that a
    query finds none of its keys in it.
    """
    count = -(-length // width)
    return [Piece(request, i * length // count, (i + 1) * length // count) for i in range(count)]


def _grouped(lengths, q_lens, small, large) -> Plan:
    groups: dict[tuple[int, int], list[int]] = {}
    for b in small:
        groups.setdefault((lengths[b], q_lens[b]), []).append(b)
    pools = tuple(Pool(tuple(Piece(b, 0, length) for b in members), q)
                  for (length, q), members in groups.items() if len(members) > 1)
    single = tuple(members[0] for members in groups.values() if len(members) == 1)
    return Plan("grouped", lengths, q_lens, pools, large + single)


class Cuts(NamedTuple):
    """What a batch is cut into, by width: pieces of every request ``counts [B, C]``, of all together ``pieces [C]``,
    of those in several ``merged [C]``, and the keys in the widest ``wide [C]``."""

    counts: np.ndarray
    pieces: np.ndarray
    merged: np.ndarray
    wide: np.ndarray


def cuts_of(lengths: np.ndarray, widths: np.ndarray) -> Cuts:
    """Requests of ``lengths [B]`` keys, cut to ``widths [C]``."""
    keys = lengths[:, None].astype(float)       # divide faster than integers, and no less exactly: quotients are small
    counts = np.ceil(keys / widths)
    pieces, whole = counts.sum(0), np.sort(lengths).searchsorted(widths, "right")
    return Cuts(counts, pieces, pieces - whole, np.ceil((keys / counts).max(0)).astype(int))


def _decomposed(lengths, q_lens, small, large, costs, width, may_stay=False) -> Plan:
    """Cut the ``small`` requests. With ``may_stay`` those that are cheaper unpooled stay so."""
    ls, qs = np.array([lengths[b] for b in small]), np.array([q_lens[b] for b in small])
    widths = np.array([width]) if width else candidates(ls)
    cuts = cuts_of(ls, widths)
    considered: dict[int, float] = {}
    staying = np.zeros(len(small), dtype=bool)
    if costs is None:
        best = int(np.where(cuts.pieces <= 2 * len(small), cuts.pieces * cuts.wide, np.inf).argmin())
    else:
        total, stays = _weighed(costs, cuts, ls, qs, bool(large), may_stay)
        considered = dict(zip(cuts.wide.tolist(), total.tolist()))
        best = int(total.argmin())
        no_pool = costs.step_call + costs.unpooled_step + costs.unpooled(ls, qs).sum() if may_stay else np.inf
        staying = stays[:, best] | (no_pool * MARGIN <= total[best])
    # those in several pieces first: only they have to be merged
    counts = cuts.counts[:, best].tolist()
    order = sorted((i for i, stays in enumerate(staying.tolist()) if not stays), key=lambda i: -counts[i])
    pieces = [p for i in order for p in cut(small[i], lengths[small[i]], int(widths[best]))]
    pools = (Pool(tuple(pieces), max(q_lens[small[i]] for i in order)),) if pieces else ()
    unpooled = large + tuple(b for b, stays in zip(small, staying) if stays)
    return priced(Plan("decomposed", lengths, q_lens, pools, unpooled, None, considered), costs)


def _weighed(costs, cuts: Cuts, ls, qs, large: bool, may_stay: bool) -> tuple[np.ndarray, np.ndarray]:
    """Seconds ``[C]`` of a step by width, and which of the requests stay unpooled ``[B, C]``.

    ``large``: there are unpooled requests in any case. With ``may_stay`` so are those that cost more in the pool, if
    that makes the whole step cheaper.
    """
    stays, rows = np.zeros(cuts.counts.shape, bool), int(qs.max())
    total = costs.step_call + costs.unpooled_step * large + costs.whole_pool(cuts.pieces, cuts.merged, cuts.wide, rows)
    if not may_stay:
        return total, stays
    pooled, unpooled = costs.pool(cuts.counts, cuts.wide, rows), costs.unpooled(ls, qs)[:, None]
    leaves = pooled >= unpooled
    calls = costs.calls(~leaves.all(0), (~leaves & (cuts.counts > 1)).any(0), cuts.wide)
    calls = calls + costs.step_call + costs.unpooled_step * (leaves.any(0) | large)
    fewer = calls + np.minimum(pooled, unpooled).sum(0)
    return np.minimum(total, fewer), leaves & (fewer < total)


def candidates(lengths: np.ndarray) -> np.ndarray:
    """Widths worth weighing, rising: between two of them some request would only get more padding.

    The best width is one that cuts some request evenly: ceil(l / n).
    """
    longest = int(lengths.max())
    n = np.arange(1, max(2, min(32, longest // NARROWEST)) + 1)
    marked = np.zeros(longest + 1, bool)        # which numbers are in a set: distinct and in order without sorting
    marked[lengths] = True
    distinct = marked.nonzero()[0]
    distinct = distinct[_spread(len(distinct))]
    marked[:] = False
    marked[-(-distinct[:, None] // n)] = True
    marked[:min(NARROWEST, longest)] = False
    return marked.nonzero()[0]


@functools.cache
def _spread(count: int) -> np.ndarray:
    """Sixteen of ``count`` places, evenly spread: so many lengths say enough, and the search stays far below a
    millisecond. All of them where there are fewer."""
    return np.linspace(0, count - 1, min(count, 16)).astype(int)


def _check(lengths, q_lens, strategy, width, max_len) -> None:
    if strategy not in STRATEGIES:
        raise ValueError(f"unknown verification strategy {strategy!r}; known: {', '.join(STRATEGIES)}")
    if not len(lengths):
        raise ValueError("plan: no requests")
    if len(lengths) != len(q_lens):
        raise ValueError(f"plan: {len(lengths)} lengths but {len(q_lens)} q_lens")
    if width is not None and width < 1:
        raise ValueError(f"plan: the width must be at least 1, got {width}")
    for b, (length, q) in enumerate(zip(lengths, q_lens)):
        if not 0 <= q <= length:
            raise ValueError(f"plan: request {b} has {q} queries among {length} keys; in-flight tokens count as keys")
        if max_len is not None and length > max_len:
            raise ValueError(f"plan: request {b} attends {length} keys, but the cache holds {max_len}")
