"""A vote of drafters: who wins, what their word counts, and that a voted token is one-hot."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tiny
from hypothesis import given, settings, strategies as st

from spin_core.lab.rivals.vote import LEAST, reweigh, walk
from spin_core.engine import Engine
from spin_core.request import Request, SamplingParams
from spin_core.select import Outcome, RequestView, make
from spin_core.lab.rivals.minions import LONGEST

PROMPTS = ["abc", "bdfhjlnprt", "ababab", "e"]
VOTE = "vote:near,subset,other,ngram"


def test_the_heaviest_path_wins_and_the_first_of_equals():
    drafts = [[1, 2, 3], [1, 4], [5], [1, 4, 6]]
    assert walk(drafts, [1, 1, 1, 1]) == [1, 4, 6]
    assert walk(drafts, [1, 1, 4, 1]) == [5]
    assert walk(drafts, [3, 1, 1, 1]) == [1, 2, 3]
    assert walk([[7], [8]], [1, 1]) == [7]
    assert walk([[], []], [1, 1]) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=5), st.floats(0.05, 1)), min_size=1, max_size=6))
def test_the_path_is_a_members_own_and_heaviest_at_every_step(ballots):
    drafts, weights = zip(*ballots)
    path = walk(drafts, weights)
    assert any(list(d) == path for d in drafts)         # to a leaf: some member's whole draft
    for i in range(len(path)):
        through = lambda token: sum(w for d, w in ballots if list(d[:i]) == path[:i] and d[i:i + 1] == [token])
        assert all(through(path[i]) >= through(token) - 1e-12 for token in range(4))


def test_a_word_gains_and_loses_weight():
    assert reweigh(.5, [1, 2], [1, 2, 9]) == pytest.approx(.6)
    assert reweigh(.5, [1, 2], [1, 9]) == pytest.approx(.5)
    assert reweigh(.5, [], [1]) == reweigh(.5, [1], []) == .5
    assert reweigh(LEAST, [1], [2]) == LEAST


@pytest.mark.parametrize("drafter", [VOTE, "vote", "vote:sparse:target:4,near"])
def test_greedy_text_is_plain_decoding(drafter):
    engine = Engine(tiny.family(), drafter, 3, max_batch=3)
    requests = engine.generate(PROMPTS, SamplingParams(max_new_tokens=30, stop_ids=()))
    for request in requests:
        tiny.assert_greedy(engine.family.target, request, stop_ids=())
    assert not engine.retired and 0 < engine.trace.metrics()["accepted"] < engine.trace.metrics()["drafted"]
    tiny.assert_sound(engine, requests)


def test_weights_settle_on_the_member_that_is_right():
    engine = Engine(tiny.family(), "vote:other,near,same", 3, max_batch=1)
    request, weights = engine.submit("abcdef", SamplingParams(max_new_tokens=40, stop_ids=())), None
    while not request.finished:
        engine.step()
        ballots = dict(engine.drafters[engine.drafter].ballots)
        weights = next(iter(ballots.values())).weights if ballots else weights
    other, near, same = weights
    assert same > .95 > near > other
    late = [e for e in engine.trace.events if e.kind == "step" and e.drafted][4:]
    assert all(e.accepted == len(e.drafted) for e in late)


def test_a_sampled_text_does_not_depend_on_its_mates_and_drafts_are_one_hot():
    params = [SamplingParams(temperature=1.0, max_new_tokens=20, seed=i, stop_ids=()) for i in range(4)]
    engine = Engine(tiny.family(), VOTE, 3, max_batch=4)
    together = engine.generate(PROMPTS, params)
    for prompt, param, request in zip(PROMPTS, params, together):
        alone, = Engine(tiny.family(), VOTE, 3, max_batch=1).generate([prompt], param)
        assert alone.output_ids == request.output_ids
    requests = [Request([1, 2, 3], params[0], slot=0)]
    assert engine.drafters[VOTE].propose(requests, [3]).probs is None


def emitted(p, q1, q2, one_hot: bool):
    """The exact distribution of the first token when two members each draw one and the vote takes the lower id:
    tested as one-hot, or with the winner's own q."""
    distribution = np.zeros_like(p)
    for a, b in itertools.product(range(len(p)), repeat=2):
        x, q = (a, q1) if a <= b else (b, q2)
        q = np.eye(len(p))[x] if one_hot else q
        keep = min(1.0, p[x] / q[x])
        rest = np.maximum(p - q, 0)
        distribution += q1[a] * q2[b] * (keep * np.eye(len(p))[x] + (1 - keep) * rest / rest.sum())
    return distribution


def test_the_winners_own_distribution_would_be_a_bias():
    """Minions' trap, by exact enumeration over six tokens."""
    rng = np.random.default_rng(0)
    p, q1, q2 = rng.dirichlet(np.ones(6), 3)
    assert abs(emitted(p, q1, q2, one_hot=True) - p).sum() / 2 < 1e-12
    assert abs(emitted(p, q1, q2, one_hot=False) - p).sum() / 2 > .02


@pytest.mark.parametrize("name", ["vote:near,near", "vote:", "vote:near,vote", "vote:near,nobody"])
def test_votes_that_cannot_be_are_refused(name):
    with pytest.raises(ValueError):
        Engine(tiny.family(), name)


def test_a_vote_is_an_arm():
    engine = Engine(tiny.family(), selector="random", gamma=3, max_batch=4, arms=["vote:near,ngram", "other"])
    requests = engine.generate(PROMPTS, SamplingParams(max_new_tokens=30, stop_ids=()))
    for request in requests:
        tiny.assert_greedy(engine.family.target, request, stop_ids=())
    assert {e.drafter for e in engine.trace.events if e.kind == "step" and e.drafted} == {"vote:near,ngram", "other"}


def play(accepting: float, row_seconds: float, steps: int = 60) -> int:
    """The length that "minions" settles on, where each drafted token holds with that probability."""
    rng, selector = np.random.default_rng(1), make("minions", ["near", "vote:a,b"])
    for _ in range(steps):
        choices = selector.assign([RequestView(r, 5, 9, 20) for r in range(4)])
        assert {c.drafter for c in choices.values()} == {"vote:a,b"}
        rows = sum(1 + c.gamma for c in choices.values())
        held = {r: int(np.argmin([*(rng.random(c.gamma) < accepting), False])) for r, c in choices.items()}
        selector.observe([Outcome(r, c.drafter, c.gamma, held[r], held[r] + 1, .0005 * c.gamma, .01, rows,
                                  .02 + row_seconds * rows) for r, c in choices.items()])
    return next(iter(choices.values())).gamma


def test_the_length_adapts_to_acceptance_and_to_what_a_row_costs():
    assert play(.95, 1e-5) == 8
    assert play(.3, 1e-3) < 3
    assert play(.8, 4e-3) < play(.8, 1e-5)


def test_the_engine_lets_minions_find_the_length():
    engine = Engine(tiny.family(), selector="minions", arms=["vote:near,subset,ngram"], max_batch=2)
    engine.generate([[5, 9, 2], [1] * 6], SamplingParams(max_new_tokens=30, stop_ids=()))
    assert engine.selection.selector.longest == LONGEST
    assert max(len(e.drafted) for e in engine.trace.events if e.kind == "step") > 2
