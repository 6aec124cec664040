"""Lesson 5's exercises: solutions, and how answers are checked."""

import random

from spin_core.lab.lessons.checking import Exercise
from spin_core.lab.lessons.l5_pipeline.measure import Stage, round_seconds


def finish(draft, verify):
    drafted = verified = 0
    for d, v in zip(draft, verify):
        drafted += d
        verified = max(drafted, verified) + v
    return verified


def _drafts_wait(draft, verify):
    clock = 0
    for d, v in zip(draft, verify):
        clock = max(clock, d) + v
    return clock


_dice = random.Random(0)
check_finish = Exercise(
    finish, "A verification starts when its draft is there and the one before it is over: the later of the two.",
    cases=[([1.0], [2.0]), ([1.0, 1.0], [1.0, 1.0]), ([2.0, 1.0], [1.0, 3.0]), ([1.0, 5.0], [1.0, 1.0]),
           *(tuple([_dice.uniform(0.1, 3) for _ in range(n)] for _ in range(2)) for n in (3, 4, 6))],
    mistakes={
        "That is taking turns: a micro-batch can be verified while the next is drafted.": lambda d, v: sum(d) + sum(v),
        "That is the ideal. It forgets that the first micro-batch cannot be verified before it is drafted.":
            lambda d, v: max(sum(d), sum(v)),
        "A verification also waits for its own draft: take the later of the two.": lambda d, v: d[0] + sum(v),
        "A verification also waits for the one before it: take the later of the two.": lambda d, v: sum(d) + v[-1],
        "Drafts are made one after another: the second begins when the first is done.": _drafts_wait})


def best_count(draft, verify, fixed, most):
    def seconds(m):
        d, v = (t * (fixed + (1 - fixed) / m) for t in (draft, verify))
        return d + (m - 1) * max(d, v) + v
    # a pipeline that goes on across the borders of rounds takes max(m d, m v, d + v): there two are enough
    return min(range(1, most + 1), key=seconds)


check_best_count = Exercise(
    best_count, "More micro-batches shorten what is not overlapped at both ends; each pays the fixed share again. "
    "Equal stages with a fixed share of 5 % need four.",
    cases=[(d, v, f, 9) for d, v, f in ((1.0, 1.0, 0.0), (1.0, 1.0, 0.05), (1.0, 1.0, 0.2), (1.0, 1.0, 1.0),
                                        (0.2, 1.0, 0.1), (0.5, 1.0, 0.02), (4.0, 1.0, 0.05))],
    judge=lambda m, draft, verify, fixed, _: round_seconds(Stage(draft, fixed), Stage(verify, fixed), int(m), True),
    whole=True, low=1, high=9, rtol=1e-6,
    mistakes={
        "With one micro-batch nothing overlaps.": lambda d, v, f, most: 1,
        "Each micro-batch pays the fixed share again.": lambda d, v, f, most: most if f < 1 else 1,
        "One micro-batch may be the best.": lambda d, v, f, most: max(2, best_count(d, v, f, most)),
        "`most` counts, too.": lambda d, v, f, most: best_count(d, v, f, most - 1)})
