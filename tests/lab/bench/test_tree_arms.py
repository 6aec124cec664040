"""Trees as arms of a selector, in micro-batches, and beside chains: they serve like any drafter."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from spin_core.engine import Engine
from spin_core.request import SamplingParams
from spin_core.select import Selector, make

ARMS = ["near", "tree:near,other:2,1", "tree:ngram,subset:1,2:independent:4", "ngram"]
PROMPTS = [[5, 9, 2] * (i % 3 + 1) + [i] for i in range(5)]


@pytest.mark.parametrize("policy", ["spin", "spin-full", "random", "fixed:tree:near,other:2,1"])
@pytest.mark.parametrize("pipeline", ["off", 2])
def test_a_selector_may_choose_trees(policy, pipeline):
    engine = Engine(tiny.family(), selector=make(policy, ARMS, gamma=2), max_batch=3, max_len=40, pipeline=pipeline)
    requests = engine.generate(PROMPTS, SamplingParams(max_new_tokens=14))
    for request in requests:
        tiny.assert_greedy(tiny.family().target, request, max_len=40)
    trees = [e for e in engine.trace.events if e.tree]
    assert trees and not engine.retired
    assert all(e.drafter.startswith("tree:") and e.reach <= 2 and e.accepted <= e.reach for e in trees)


def test_what_a_selector_learns_of_a_tree_is_its_depth_not_its_nodes():
    """Of six nodes at depth 2 two may be accepted; counted as six drafts, trees would look hopeless."""
    told = []

    class Listening(Selector):
        def weights(self, views):
            return np.array([[1.0, 0.0]] * len(views))      # always the tree

        def learn(self, outcomes):
            told.extend(outcomes)

    engine = Engine(tiny.family(), selector=Listening(["tree:near:3,1"], gamma=2), max_batch=2, max_len=40,
                    pipeline="off")
    engine.generate(PROMPTS[:2], SamplingParams(max_new_tokens=10))
    assert max(o.drafted for o in told) == 2 and max(len(e.drafted) for e in engine.trace.events) == 6


def test_a_pinned_chain_rides_beside_trees_and_sampled_texts_do_not_depend_on_it():
    params = [SamplingParams(max_new_tokens=12, temperature=0.8, seed=s) for s in range(4)]
    name = "tree:near,subset:2,2"
    engine = Engine(tiny.family(), "none", max_batch=4, max_len=40)
    together = [engine.submit(p, q, drafter=d) for p, q, d in zip(PROMPTS, params, [name, "near", name, "ngram"])]
    while any(not r.finished for r in together):
        engine.step()
    one = Engine(tiny.family(), name, max_batch=1, max_len=40)
    alone = one.generate([PROMPTS[0], PROMPTS[2]], [params[0], params[2]])
    assert [together[0].output_ids, together[2].output_ids] == [r.output_ids for r in alone]


def test_a_tree_that_is_an_arm_drafts_all_of_its_depth():
    arms = ["tree:near:1,1,3", "ngram", "near"]
    engine = Engine(tiny.family(), selector="spin", arms=arms)
    assert dict(zip(engine.selection.selector.arms, engine.selection.selector.gamma.tolist())) == \
        dict(zip([*arms, "none"], [3, 4, 2, 0]))
