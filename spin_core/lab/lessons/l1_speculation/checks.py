"""Lesson 1's exercises: solutions, and how answers are checked."""

from collections.abc import Callable
from functools import wraps

import numpy as np

from spin_core import theory
from spin_core.lab.lessons.checking import Exercise, ask, check, said, wrong
from spin_core.lab.lessons.l1_speculation.distribution import distribution_test


def replacement(p, q):
    rest = np.maximum(p - q, 0)
    # with p = q nothing is rejected, so any distribution would do; where rounding disagrees, p is the safe choice
    return rest / rest.sum() if rest.sum() > 0 else p


def _emitted(answer, p, q):
    """The emitted token's distribution: min(p, q) by acceptance, the rest by replacement; and the answer's own sum."""
    accepted = np.minimum(p, q)
    return np.append(accepted + (1 - accepted.sum()) * answer, answer.sum())


_rng = np.random.default_rng(0)
_same = _rng.dirichlet(np.ones(5))
check_replacement_distribution = Exercise(
    replacement, "Accepted and replaced tokens together follow p, whatever q is: that is the whole trick.",
    cases=[*((_rng.dirichlet(np.full(v, a)), _rng.dirichlet(np.full(v, b)))
             for v, a, b in ((3, 1.0, 1.0), (6, 0.3, 0.3), (6, 3.0, 0.2), (50, 0.1, 1.0))),
           (np.array([0.0, 0.4, 0.6]), np.array([1.0, 0.0, 0.0])), (_same, _same.copy())],
    judge=_emitted, low=0, high=1 + 1e-9,
    mistakes={
        "That is p itself. The tokens to which q gives too much would be emitted too often: take only what q lacks.":
            lambda p, q: p,
        "What is left of p when p equals q? Then the sum is zero.":
            lambda p, q: (rest := np.maximum(p - q, 0)) / rest.sum(),
        "A distribution sums to 1: divide by the sum.": lambda p, q: np.maximum(p - q, 0),
        "A probability is not negative: where q is larger than p, nothing is left.": lambda p, q: p - q,
        "Clip at zero instead of taking absolute values: where q is larger than p, nothing is left.":
            lambda p, q: abs(p - q) / abs(p - q).sum() if (p != q).any() else p,
        "p and q are exchanged.":
            lambda p, q: (rest := np.maximum(q - p, 0)) / rest.sum() if (p != q).any() else p})


def choose_gamma(alpha, cost):
    def speed_up(gamma):
        return sum(alpha ** j for j in range(gamma + 1)) / (gamma * cost + 1)
    # in a line: theory.best_gamma(alpha, cost)[0]
    return max(range(65), key=speed_up)


check_choose_gamma = Exercise(
    choose_gamma, "The best gamma grows with alpha and falls with c. It is 0 exactly where alpha <= c: already "
    "the first drafted token gains alpha tokens for the time of c.",
    cases=[(0.8, 0.05), (0.6, 0.05), (0.8, 0.1), (0.5, 0.3), (0.9, 0.02), (0.3, 0.4), (0.05, 0.2), (0.0, 0.1),
           (1.0, 0.1), (1.0, 0.5)],
    judge=lambda gamma, alpha, cost: theory.speed_up(alpha, gamma, cost), whole=True, low=0, high=64, rtol=1e-12,
    mistakes={
        "Is speculation always worth it? Try gamma = 0 as well.":
            lambda a, c: max(range(1, 65), key=lambda g: theory.speed_up(a, g, c)),
        "Drafting costs time as well: divide by gamma c + 1.":
            lambda a, c: max(range(65), key=lambda g: theory.expected_tokens(a, g)),
        "The target adds a token of its own: count it in the numerator.":
            lambda a, c: max(range(65), key=lambda g: (theory.expected_tokens(a, g) - 1) / (g * c + 1)),
        "Does every pair want the same gamma?": lambda a, c: 8,
        "64 counts, too.": lambda a, c: max(range(64), key=lambda g: theory.speed_up(a, g, c)),
        "With alpha = 1 the closed formula is 0 / 0: use the sum 1 + alpha + ... instead.":
            lambda a, c: max(range(65), key=lambda g: (1 - a ** (g + 1)) / (1 - a) / (g * c + 1)),
        "With alpha = 1 a longer draft is always better as long as c is below 1.":
            lambda a, c: 0 if a == 1 else theory.best_gamma(a, c)[0]})


def accept_reject(p, q, drafted, rng):
    emitted = []
    for j, x in enumerate(drafted):
        if rng.random() * q[j][x] < p[j][x]:
            emitted.append(x)
        else:
            rest = np.maximum(p[j] - q[j], 0)
            emitted.append(rng.choice(len(rest), p=rest / rest.sum()))
            return emitted
    emitted.append(rng.choice(len(p[0]), p=p[len(drafted)]))
    # the engine does the same for a whole batch at once: spin_core/verify/chain.py
    return emitted


GAMMA, DRAWS = 2, 3000
# A made-up language of three tokens: the target's and the drafter's distribution behind each token. p is below q at
# some tokens and above at others, so every branch of the loop is taken.
P = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.45, 0.45, 0.1]])
Q = np.array([[0.2, 0.3, 0.5], [0.4, 0.3, 0.3], [0.1, 0.6, 0.3]])


def _rules_then_distribution(solution: Callable) -> str:
    """``solution(p, q, drafted, rng)`` is the list of the tokens emitted for a draft; ``p`` has a row more than ``q``.

    First its rules one by one, each with a hint; then the distribution of many texts of the made-up language.
    """
    rng, called = np.random.default_rng(0), "accept_reject(p, q, drafted, rng)"

    @wraps(solution)
    def loop(p, q, drafted):
        try:
            return solution(p, q, drafted, rng)
        except ValueError as error:
            if "sum to 1" in str(error):        # what rng.choice says of weights
                raise ValueError("the probabilities do not sum to 1. Divide the residual by its sum") from error
            raise

    def emitted(p, q, drafted) -> list[int]:
        answer = ask(loop, np.array(p), np.array(q), drafted, called=called)
        try:
            whole = all(token == int(token) for token in answer)
            tokens = [int(token) for token in answer]
        except (TypeError, ValueError):
            whole, tokens = False, []
        if not whole:
            wrong(f"{called} should be a list of token ids, it is {said(answer)}, a {type(answer).__name__}.")
        if not 1 <= len(tokens) <= len(drafted) + 1 or not all(0 <= t < len(p[0]) for t in tokens):
            wrong(f"{len(drafted)} drafted tokens give 1 to {len(drafted) + 1} emitted ones, ids from 0 to "
                  f"{len(p[0]) - 1}; yours are {said(tokens)}.")
        return tokens

    same = [emitted(P, P[:GAMMA], [0, 1]) for _ in range(20)]
    if any(tokens[:2] != [0, 1] for tokens in same):
        wrong("Where p and q are equal, every drafted token is accepted; yours rejects some. Which of u q and p is "
              "larger?")
    if any(len(tokens) != GAMMA + 1 for tokens in same):
        wrong("All drafted tokens were accepted: the target adds one more token, drawn from the last row of p.")
    if any(emitted([[0, 1, 0]] * 2, [[1, 0, 0]], [0])[0] == 0 for _ in range(20)):
        wrong("A token with p = 0 was accepted.")
    for _ in range(200):
        tokens = emitted(P[[0, 1, 2]], Q[[0, 1]], [2, 0])
        if any(token != drafted for token, drafted in zip(tokens[:-1], [2, 0])):
            wrong("The step ends at the first rejection: what was drafted behind a rejected token does not count.")
        if tokens[0] == 1 and len(tokens) == 1:
            wrong("Token 1 replaced a rejected token although q gives it as much as p does: replacements are drawn "
                  "from (p - q)+, not from p.")
    # the made-up language has only one token in every residual: how it is drawn from shows here
    share = np.mean([emitted([[0, .75, .25], [1, 0, 0]], [[1, 0, 0]], [0])[0] == 2 for _ in range(300)])
    if abs(share - .25) > .11:
        wrong(f"Here (p - q)+ is [0, 0.75, 0.25], so token 2 should replace in 25% of the cases; in yours it is "
              f"{share:.0%}. Draw in proportion to (p - q)+.")
    return _texts_follow_the_target(solution)


def _texts_follow_the_target(loop: Callable, draws: int = DRAWS) -> str:
    """Whether texts of three tokens of the made-up language, made with ``loop``, follow the target's distribution.

    ``loop`` is called as in the exercise; a text that is too short is continued by plain decoding.
    """
    rng, counts = np.random.default_rng(1), np.zeros((3, 3, 3))
    for _ in range(draws):
        drafted, last = [], 0
        for _ in range(GAMMA):
            drafted.append(int(rng.choice(3, p=Q[last])))
            last = drafted[-1]
        rows = [0, *drafted]
        text = [int(t) for t in loop(P[rows], Q[rows[:GAMMA]], list(drafted), rng)]
        while len(text) < 3:
            text.append(int(rng.choice(3, p=P[text[-1]])))
        counts[tuple(text)] += 1
    exact = P[0][:, None, None] * P[:, :, None] * P[None]
    test = distribution_test(counts.ravel(), exact.ravel())
    found = (f"{draws} texts are {test.distance:.3f} from the target's distribution (total variation); chance alone "
             f"explains up to {test.noise:.3f}; p-value {test.p_value:.2g}.")
    if test.p_value < 1e-4:
        first = counts.sum((1, 2)) / draws
        token = int(np.abs(first - P[0]).argmax())
        wrong(f"BIASED: {found} Token {token} comes first in {first[token]:.2f} of the texts; the target gives it "
              f"{P[0, token]:.2f}, the drafter {Q[0, token]:.2f}.")
    return f"LOSSLESS: {found}"


check_accept_reject = Exercise(accept_reject, test=_rules_then_distribution)
is_lossless = check(_texts_follow_the_target)
