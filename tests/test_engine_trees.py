"""Trees through the whole engine: greedy text equals plain decoding, and the distribution of sampled text is the
target's."""

from __future__ import annotations

import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine_distribution import FILTERED, PLAIN, family, distribution, p_value, texts

from spin_core.draft.tree import depths
from spin_core.engine import Engine
from spin_core.request import SamplingParams

MEMBERS = ["near", "subset", "other", "short", "ngram"]
DRAWINGS = ["independent", "without_replacement", "top_k", "naive"]


@st.composite
def names(draw) -> str:
    """Any tree by name."""
    members = draw(st.lists(st.sampled_from(MEMBERS), min_size=1, max_size=3, unique=True))
    shape = draw(st.one_of(st.lists(st.integers(1, 3), min_size=1, max_size=4).map(lambda k: ",".join(map(str, k))),
                           st.sampled_from(["0.0.1.1.2", "0.1.1.2.4.5"])))
    budget = draw(st.sampled_from(["", ":1", ":6"]))
    return f"tree:{','.join(members)}:{shape}:{draw(st.sampled_from(DRAWINGS))}{budget}"


def assert_told(engine: Engine, requests) -> None:
    """The trace of the trees: every accepted node is on the path, and the texts are what the steps emitted."""
    written = {r.id: [] for r in requests}
    for event in engine.trace.events:
        if event.kind != "step":
            continue
        written[event.request] += event.emitted
        if not event.tree:
            continue
        tree = event.tree
        assert len(tree["parents"]) == len(event.drafted) == len(tree["drafters"]) and all(tree["drafters"])
        assert event.context + len(event.drafted) <= engine.max_len
        assert [event.drafted[n] for n in tree["path"]][:len(event.emitted)] == event.emitted[:event.accepted]
        assert [tree["parents"][n] for n in tree["path"]] == [-1, *tree["path"]][:len(tree["path"])]
        assert depths(tree["parents"]) == [] or max(depths(tree["parents"])) < 4
    for request in requests:
        assert written[request.id] == request.output_ids


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.one_of(names(), st.sampled_from(["near", "ngram", "none", "ngram+near"])),
                          st.lists(st.integers(0, 40), min_size=1, max_size=14), st.integers(1, 16), st.integers(0, 4)),
                min_size=1, max_size=6), st.integers(1, 3), st.sampled_from([18, 24, 40]),
       st.sampled_from(["per-request", "padded", "decomposed"]))
def test_greedy_text_of_trees_and_chains_is_plain_decoding(wanted, max_batch, max_len, verification):
    """Exactly, in float64: any trees beside chains, of any shape and drafters, cut by budgets, contexts and limits."""
    engine = Engine(tiny.family(), "none", max_batch=max_batch, max_len=max_len, verification=verification)
    requests = [engine.submit(prompt, SamplingParams(max_new_tokens=new), drafter=name, gamma=gamma)
                for name, prompt, new, gamma in wanted]
    while any(not r.finished for r in requests):
        engine.step()
    for request in requests:
        tiny.assert_greedy(tiny.family().target, request, max_len=max_len)
    assert not engine.retired
    assert_told(engine, requests)
    tiny.assert_idle(engine)
    assert not any(any(m.runner.cache.lengths) for d in engine.drafters.values() for m in getattr(d, "members", [])
                   if hasattr(m, "runner"))


def test_a_fed_drafter_grows_trees():
    family = tiny.fed_family()
    engine = Engine(family, "tree:fed:8,2,1", max_batch=2, max_len=40)       # wide: its weights are random
    for request in engine.generate([[5, 9, 2], [7] * 9, [1]], SamplingParams(max_new_tokens=20)):
        tiny.assert_greedy(family.target, request, max_len=40)
    assert engine.trace.metrics()["accepted"] > 0 and not engine.retired


@pytest.mark.parametrize("drawing", DRAWINGS)
def test_a_chain_shaped_tree_drafts_and_decides_as_the_chain(drawing):
    """Draw by draw, unless the drawn tokens are handed over as one-hot."""
    params = [SamplingParams(max_new_tokens=12, temperature=0.9, seed=s) for s in range(3)]
    chain, tree = (Engine(tiny.family(), name, 3, max_batch=3, max_len=60).generate([[1, 2, 3]] * 3, params)
                   for name in ("near", f"tree:near:1,1,1:{drawing}"))
    assert ([r.output_ids for r in chain] == [r.output_ids for r in tree]) == (drawing not in ("top_k", "naive"))


@pytest.mark.parametrize("name, params, count", [
    ("tree:other:2,2", PLAIN, 1_500), ("tree:near,other:2,1:independent", PLAIN, 1_500),
    ("tree:near,subset,ngram:2,2::5", FILTERED, 1_500), ("tree:other:3,1:top_k", PLAIN, 1_200),
    ("tree:other:2,2:naive", FILTERED, 1_200)])
def test_the_distribution_of_the_engine_with_trees(name, params, count):
    name = name.replace("::", ":without_replacement:")
    assert p_value(texts(name, 2, params, count), distribution(params)) > 1e-3


def test_a_tree_that_lies_about_q_is_caught():
    """The test above has power."""
    engine = Engine(family(), "tree:other:2,1", 2, max_batch=256, max_len=16)
    drafter = engine.get_drafter("tree:other:2,1")
    honest = drafter.propose

    def propose(requests, counts):
        tree = honest(requests, counts)
        if tree.probs is not None:
            tree.probs = tree.probs.sqrt() / tree.probs.sqrt().sum(-1, keepdim=True)
        return tree

    drafter.propose = propose
    assert p_value(texts("tree:other:2,1", 2, PLAIN, 2_000, engine), distribution(PLAIN)) < 1e-4


@pytest.mark.parametrize("name, why", [
    ("tree:near:2,1:deduplicated", "merging equal siblings"), ("tree:near:2,1:beam", "known ways are"),
    ("tree:near:0,1", "at least one child"), ("tree:near:0.3", "no tree"), ("tree:near:1.0", "level by level|no tree"),
    ("tree:near:x", "tree shape 'x'"), ("tree:near", "is no tree"), ("tree:nobody:2", "unknown drafter 'nobody'"),
    ("tree:none,tree:2", "unknown|is no tree"), ("tree:ngram+near:2", "grown by model drafters that see all"),
    ("ngram+tree:near:2,1", "a composition is of chains"), ("tree:near:2:top_k:4:5", "too many fields"),
    ("tree:near:9,9,9,9", "more than 512"), ("tree:near:2:0", "budget of at least one")])
def test_what_is_no_tree_is_refused_by_name(name, why):
    with pytest.raises(ValueError, match=why):
        Engine(tiny.family(), name)
