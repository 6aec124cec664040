"""The companions' drafters as arms of SPIN's selection: sparse caches, votes and trees in one engine."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from spin_core.engine import Engine
from spin_core.request import SamplingParams
from spin_core.select.spin import Spin

ARMS = ["near", "ngram", "sparse:target:1/2", "sparse:near:5", "vote:near,subset,ngram", "tree:near,other:2,1"]
PROMPTS = ["abc", "bdfhjlnprt", "ababab", "e", "aabbccddeeffgghh"] * 3


@pytest.mark.parametrize("policy", ["spin", "spin-full"])
@pytest.mark.parametrize("pipeline", ["off", 2])
def test_spin_tries_them_all_and_greedy_text_is_plain_decoding(policy, pipeline, monkeypatch):
    # left to itself it leaves out what cannot pay, and with models so small that is nearly everything
    monkeypatch.setattr(Spin, "_may_pay", lambda self, views, rates, price: np.ones_like(rates, bool))
    monkeypatch.setattr(Spin, "_waiting", lambda self, unproven: np.zeros_like(unproven))
    engine = Engine(tiny.family(), selector=policy, arms=ARMS, max_batch=4, pipeline=pipeline)
    requests = engine.generate(PROMPTS, SamplingParams(max_new_tokens=20, stop_ids=()))
    for request in requests:
        tiny.assert_greedy(engine.family.target, request, stop_ids=())
    assert {e.drafter for e in engine.trace.events if e.kind == "step" and e.drafted} == {*ARMS}
    assert not engine.retired and 0 < engine.trace.metrics()["accepted"] < engine.trace.metrics()["drafted"]
    tiny.assert_idle(engine)
