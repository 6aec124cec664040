"""What every request has got from every arm so far: the sums that most policies keep."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy import ndarray

from spin_core.select.base import Outcome
from spin_core.select.costs import AffineCost


class RequestTables:
    """Tables ``[tables, rows, arms]`` with a row per request, which the request keeps until it leaves."""

    def __init__(self, tables: int, arms: int) -> None:
        self.row: dict[int, int] = {}
        self.unused: list[int] = []
        self._keep(np.zeros((tables, 0, arms)))

    def rows(self, requests: Iterable[int]) -> ndarray:
        """The rows of these requests; a new request gets a row of zeros."""
        return np.fromiter((self.row[r] if r in self.row else self._open(r) for r in requests), int)

    @contextmanager
    def peek(self, requests: Sequence[int]) -> Iterator[ndarray]:
        """The rows of these requests, some of which may have left; theirs are closed again."""
        left = [r for r in requests if r not in self.row]
        yield self.rows(requests)
        for request in left:
            self.close(request)

    def close(self, request: int) -> None:
        """Forget a request."""
        row = self.row.pop(request, None)
        if row is not None:
            self.tables[:, row] = 0
            self.unused.append(row)

    def _open(self, request: int) -> int:
        if not self.unused:
            tables, size, arms = self.tables.shape
            self._keep(np.concatenate([self.tables, np.zeros((tables, max(8, size), arms))], 1))
            self.unused = list(range(size, self.tables.shape[1]))[::-1]
        self.row[request] = self.unused.pop()
        return self.row[request]

    def _keep(self, tables: ndarray) -> None:
        """From now on the tables are these."""
        self.tables = tables


class Ledger(RequestTables):
    """Steps, emitted tokens, own seconds and tested draft tokens per request and arm, ``[rows, arms]``. A draft is
    tested up to its first rejected token. In a batch of B requests, the rate of a request with an arm is

        tokens / (own seconds + steps * plain(B) / B).

    *Own* seconds are caused by the draft: drafting, and the rows that it adds to the target's pass. ``plain(B)`` are
    the seconds of a pass without drafts, learned, of which each request pays an equal part. They are not summed up but
    counted at the present B: an arm tried in a small batch would look slower than one tried in a large batch.

    A ratio of sums: a mean of ratios would count a short step as much as a long one. What the arm ``common`` (no
    speculation; -1: there is no such arm) brings does not depend on the request, so it is one sum for all.
    """

    def __init__(self, arms: int, common: int) -> None:
        super().__init__(4, arms)
        self.common = common
        self.common_sums = np.zeros(3)      # steps, tokens, own seconds
        self.plain = AffineCost()

    def add(self, outcomes: Sequence[Outcome], arms: ndarray) -> tuple[ndarray, ndarray, ndarray, ndarray]:
        """Add a step; returns its rows, tokens, own seconds and tested tokens, one each per outcome."""
        rows, count = self.rows(o.request for o in outcomes), len(outcomes)
        tokens = np.array([o.emitted for o in outcomes], float)
        own = np.array([o.draft_seconds + o.verify_seconds - o.plain_seconds for o in outcomes])
        tested = np.array([min(o.accepted + 1, o.drafted) for o in outcomes], float)
        self.plain.learn(count, sum(o.plain_seconds for o in outcomes))
        self.steps[rows, arms] += 1
        self.tokens[rows, arms] += tokens
        self.own[rows, arms] += own
        self.tested[rows, arms] += tested
        shared = arms == self.common
        self.common_sums += shared.sum(), tokens[shared].sum(), own[shared].sum()
        return rows, tokens, own, tested

    def rates(self, rows: ndarray, prior: tuple[ndarray, ndarray, ndarray] | None = None) -> ndarray:
        """Tokens per second in a batch of as many requests as ``rows``, ``[B, arms]``; infinite for an untried arm.
        ``prior``: steps, tokens and own seconds per arm that count as if every request had had them."""
        steps, tokens, own = prior or (0.0, 0.0, 0.0)
        tokens = self.tokens[rows] + tokens
        seconds = self.seconds(rows) + (own + steps * self.share(len(rows)))
        rates = np.where(seconds > 0, tokens / np.where(seconds > 0, seconds, 1), np.inf)
        if self.common >= 0:
            rates[:, self.common] = self.common_rate(len(rows))
        return rates

    def seconds(self, rows: ndarray) -> ndarray:
        """What the steps so far would have taken in a batch of as many requests as ``rows``, ``[B, arms]``."""
        return self.own[rows] + self.steps[rows] * self.share(len(rows))

    def share(self, count: int) -> float:
        """A request's part, in seconds, of a pass without drafts that ``count`` requests share."""
        return self.plain(count) / max(1, count)

    def common_rate(self, count: int) -> float:
        """Tokens per second of the arm that all share; infinite before its first step."""
        steps, tokens, own = self.common_sums
        return tokens / (own + steps * self.share(count)) if steps else np.inf

    def _keep(self, tables: ndarray) -> None:
        super()._keep(tables)
        self.steps, self.tokens, self.own, self.tested = tables
