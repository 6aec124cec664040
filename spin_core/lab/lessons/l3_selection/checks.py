"""Lesson 3's exercises: solutions, and how answers are checked."""

from spin_core.lab.lessons.checking import Exercise
from spin_core.lab.simulate.recording import Passes


def shrink(tokens, seconds, pool_rate, trust):
    # `rates` in spin_core/select/spin.py, where trust is counted in steps
    return (tokens + pool_rate * trust) / (seconds + trust)


check_shrink = Exercise(
    shrink, "A ratio of sums: what the request itself had, and a share of what all others had.",
    cases=[(0, 0.0, 50.0, 0.4), (30, 0.5, 50.0, 0.5), (10, 1.0, 40.0, 0.0), (7, 0.1, 20.0, 1e6)],
    mistakes={
        "A new request has had nothing yet. What should its estimate be then?": lambda t, s, rate, trust: t / s,
        "That ignores what the request itself has had.": lambda t, s, rate, trust: rate,
        "That is a mean of two rates. A rate over little time should count little: divide sums of tokens and seconds.":
            lambda t, s, rate, trust: ((t / s if s else rate) + rate) / 2,
        "The borrowed seconds bring tokens, too: pool_rate * trust of them.":
            lambda t, s, rate, trust: (t + rate) / (s + trust),
        "The borrowed tokens took time as well: trust seconds.":
            lambda t, s, rate, trust: (t + rate * trust) / (s or trust),
        "trust is in seconds: trust of them bring pool_rate * trust tokens.":
            lambda t, s, rate, trust: (t + trust) / (s + trust / rate)})


def budget(worth, cost):
    requests, values = len(worth), sorted((w for row in worth for w in row), reverse=True)

    def rate(n):
        return (requests + sum(values[:n])) / cost(requests + n)
    # worth falls with depth, so the best n never contain a later token without the ones before it
    return max(range(len(values) + 1), key=rate)


def _budget(worth, cost, values=None, own=1, first=0, rows=1):
    """The budget with something else: the order of values, the tokens counted per request, the least n, the rows."""
    values = sorted((w for row in worth for w in row), reverse=True) if values is None else values
    return max(range(first, len(values) + 1),
               key=lambda n: (own * len(worth) + sum(values[:n])) / cost(rows * len(worth) + n))


def _first_loss(worth, cost):
    """Stops where the next position alone brings nothing."""
    values = sorted((w for row in worth for w in row), reverse=True)
    rates = [(len(worth) + sum(values[:n])) / cost(len(worth) + n) for n in range(len(values) + 1)]
    return next((n for n in range(len(values)) if rates[n + 1] <= rates[n]), len(values))


check_budget = Exercise(
    budget, "Cheap rows: draft all. Expensive rows: draft nothing. Between them the sorted list is cut where another "
    "position brings less than the average second does; where costs have steps, all numbers have to be compared.",
    cases=[([[.9, .8, .7], [.5, .2, .1]], lambda n: 1 + .2 * n), ([[.9, .8], [.5, .2]], lambda n: 1.0),
           ([[.3, .1], [.2, .0]], lambda n: n), ([[.95, .9, .85, .8]] * 3, Passes((1, 8, 16), (1, 1.1, 3))),
           ([[.9, .8, .7], [.6, .5, .4]], lambda n: 1 if n <= 2 else 1.6),
           ([[.4, .1], [.9, .8], [.7, .2]], lambda n: 1 + .16 * n),      # the best are not the first ones listed
           ([[.1, .05], [.1, .05], [.95, .9]], lambda n: .25 * n), ([[.9, .1], [.8, .1]], lambda n: 2 + .6 * n)],
    whole=True, low=0,
    mistakes={
        "Take the best positions of the whole batch first: sort all of them together.":
            lambda worth, cost: _budget(worth, cost, [w for row in worth for w in row]),
        "Every request gets a token anyway: count it.": lambda worth, cost: _budget(worth, cost, own=0),
        "A pass has a row per request beside the drafted positions.": lambda worth, cost: _budget(worth, cost, rows=0),
        "Drafting nothing may be the best.": lambda worth, cost: _budget(worth, cost, first=1),
        "Costs may have a step: the first position behind it may lose, and many together gain. Compare all numbers.":
            _first_loss,
        "That is every position. Rows cost time.": lambda worth, cost: sum(map(len, worth))})
