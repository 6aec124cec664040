"""Lesson 2's exercises: solutions, and how answers are checked."""

import numpy as np

from spin_core.lab.lessons.checking import Exercise


def draft_vocabulary(counts, size, stop_ids):
    counts = np.array(counts)
    # without the stop ids the drafter could never end an answer: its last guess would always be rejected
    counts[list(stop_ids)] = counts.max() + 1
    return sorted(np.argsort(-counts, kind="stable")[:size].tolist())


def _counts(vocab, stops, ends):
    """Counts that all differ, but for the stop ids'. A stop id ends every answer; in a short text it may be rare."""
    counts = np.random.default_rng(vocab).permutation(np.arange(vocab) + 1)
    counts[list(stops)] = ends
    return counts


def _most_frequent(counts, size):
    return np.argsort(-np.array(counts), kind="stable")[:size].tolist()


check_vocabulary = Exercise(
    draft_vocabulary, "The most frequent ids, and the stop ids whatever their count.",
    cases=[(_counts(vocab, stops, ends), size, stops)
           for vocab, size, stops, ends in ((12, 4, (2,), 0), (50, 10, (0, 49), 0), (30, 30, (5,), 0),
                                            (12, 4, (2,), 99))],
    whole=True, low=0,
    mistakes={
        "A stop id is missing: such a drafter could never end an answer.":
            lambda c, s, stops: sorted(_most_frequent(c, s)),
        "The ids must ascend: column j of the drafter's head is the j-th of them.":
            lambda c, s, stops: [*stops, *[i for i in _most_frequent(c, len(c)) if i not in stops]][:s],
        "These are the counts, not the ids: np.argsort gives ids.": lambda c, s, stops: sorted(sorted(c)[-s:]),
        "These are the rarest ids.": lambda c, s, stops: sorted(
            [*stops, *[i for i in _most_frequent(c, len(c))[::-1] if i not in stops]][:s]),
        "The stop ids count among the `size` ids.": lambda c, s, stops: sorted({*_most_frequent(c, s), *stops}),
        "A stop id may be among the most frequent ones already: then another id has room.":
            lambda c, s, stops: sorted({*_most_frequent(c, s - len(stops)), *stops})})


def most_accepted(p, ids):
    # the best q gives every id of the vocabulary at least p: then min(p, q) = p there, and 0 elsewhere
    return p[ids].sum()


_p = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
check_most_accepted = Exercise(
    most_accepted, "What the drafter cannot say is lost, and nothing else: the price of a small vocabulary.",
    cases=[(_p, [0, 1, 2, 3, 4]), (_p, [0, 2]), (_p, [4]), (_p[::-1].copy(), [0, 1, 2])],
    mistakes={
        "Acceptance is a probability, not a number of ids.": lambda p, ids: len(ids),
        "Count probabilities, not ids.": lambda p, ids: len(ids) / len(p),
        "The target's likeliest token may be missing from the vocabulary; and more than one token can be accepted.":
            lambda p, ids: p.max(),
        "The drafter may choose its q: what is the best one?": lambda p, ids: np.minimum(p[ids], 1 / len(ids)).sum(),
        "More than one id can be accepted: add them up.": lambda p, ids: p[ids].max()})


def speed_up(steps, c, v):
    plain = sum(accepted + 1 for _, accepted in steps)
    return plain / sum(drafted * c + v[drafted] for drafted, _ in steps)


check_speed = Exercise(
    speed_up, "This is how the table above and every replay of this project count.",
    cases=[([(4, 4)], .1, [1, 1, 1, 1, 1]), ([(4, 0), (4, 2), (1, 1), (0, 0)], .05, [1, 1.1, 1.2, 1.3, 1.4]),
           ([(0, 0)] * 3, .5, [1.0]), ([(2, 1)] * 7, .3, [1, 1.5, 2])],
    mistakes={
        "Each verification also brings a token of the target's own.":
            lambda steps, c, v: sum(a for _, a in steps) / sum(d * c + v[d] for d, _ in steps),
        "Rejected tokens were drafted as well, and have to be paid for.":
            lambda steps, c, v: sum(a + 1 for _, a in steps) / sum(a * c + v[d] for d, a in steps),
        "A target pass over more rows costs more: v[drafted].":
            lambda steps, c, v: sum(a + 1 for _, a in steps) / sum(d * c + 1 for d, _ in steps),
        "Each step reads its own draft and one row more: v[drafted], not v[accepted].":
            lambda steps, c, v: sum(a + 1 for _, a in steps) / sum(d * c + v[a] for d, a in steps),
        "Drafting has to be paid for, too.":
            lambda steps, c, v: sum(a + 1 for _, a in steps) / sum(v[d] for d, _ in steps),
        "That is the mean over steps of their speed-ups. Add up all tokens and all costs first.":
            lambda steps, c, v: np.mean([(a + 1) / (d * c + v[d]) for d, a in steps]),
        "That is the reciprocal: plain passes over passes spent.":
            lambda steps, c, v: sum(d * c + v[d] for d, _ in steps) / sum(a + 1 for _, a in steps)})
