"""The exercises on request decomposition: open, right, and wrong for a reason."""

from __future__ import annotations

import numpy as np
import pytest

from spin_core.lab.lessons.l4_decomposition import checks


def merge(outs, lses):
    weights = np.exp(lses - lses.max(0))
    weights = weights / weights.sum(0)
    return (weights[:, :, None] * outs).sum(0)


def careless(outs, lses):
    weights = np.exp(lses)
    return (weights[:, :, None] * outs).sum(0) / weights.sum(0)[:, None]


def in_place(outs, lses):
    lses -= lses.max(0)
    return merge(outs, lses)


WRONG_ROWS = {
    "all keys in a row": (lambda lengths, width: -(-sum(lengths) // width), "belongs to one request"),
    "forgets the rest": (lambda lengths, width: sum(n // width for n in lengths), "left over"),
    "a piece too many": (lambda lengths, width: sum(n // width + 1 for n in lengths), "expected"),
    "no number": (lambda lengths, width: "many", "is a number"),
    "raises": (lambda lengths, width: 1 / 0, "ZeroDivisionError"),
}
WRONG_MERGES = {
    "mean of the pieces": (lambda outs, lses: outs.mean(0), "is a mean enough"),
    "overflows": (careless, "not finite"),
    "weights not normalised": (lambda outs, lses: (np.exp(lses)[:, :, None] * outs).sum(0), "off by"),
    "log-sum-exps as weights": (lambda outs, lses: (lses[:, :, None] * outs).sum(0) / lses.sum(0)[:, None], "off by"),
    "changes its inputs": (in_place, "changes its inputs"),
    "wrong shape": (lambda outs, lses: outs, "shape"),
    "no array": (lambda outs, lses: "merged", "array of numbers"),
    "raises": (lambda outs, lses: 1 / 0, "ZeroDivisionError"),
}


@pytest.mark.parametrize("check", [checks.check_rows, checks.check_merge])
@pytest.mark.parametrize("answer", [None, ...])
def test_untouched_exercises_are_open(check, answer):
    assert check(lambda *_: answer).status == "open"


def test_rows_right():
    assert checks.check_rows(lambda lengths, width: sum(-(-n // width) for n in lengths)).status == "right"
    assert checks.check_rows(lambda lengths, width: np.ceil(np.array(lengths) / width).sum()).status == "right"


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_rows_wrong(name):
    solution, reason = WRONG_ROWS[name]
    answer = checks.check_rows(solution)
    assert answer.status == "wrong" and reason in answer.message


def test_merge_right():
    assert checks.check_merge(merge).status == "right"
    assert checks.check_merge(lambda outs, lses: merge(outs, lses).tolist()).status == "right"


@pytest.mark.parametrize("name", WRONG_MERGES)
def test_merge_wrong(name):
    solution, reason = WRONG_MERGES[name]
    answer = checks.check_merge(solution)
    assert answer.status == "wrong" and reason in answer.message
