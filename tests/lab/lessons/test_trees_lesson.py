"""The lesson on token trees: its steps, its walk, its checks, its pictures and widgets."""

from __future__ import annotations

from collections import Counter

import matplotlib
import numpy as np
import pytest
import tiny
from ipywidgets import HTML, Dropdown, FloatSlider, IntSlider, Text
from scipy import stats
from test_widgets import controls

from spin_core.engine import Engine
from spin_core.lab.lessons.l8_token_trees import measure as trees, plots, steps as tree_steps, widgets
from spin_core.lab.lessons.l6_verify_kernel.rules import P
from spin_core.request import SamplingParams
from spin_core.trace import Event

NAME = "tree:near,same:2,1"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(tiny.family(), "none", max_batch=1, max_len=60)


def words(figure) -> list[str]:
    return [t.get_text() for t in figure.findobj(matplotlib.text.Text)]


def test_the_steps_are_the_answer(engine):
    steps = tree_steps.tree_steps(engine, NAME, "abcab", SamplingParams(max_new_tokens=12))
    plain = engine.generate(["abcab"], SamplingParams(max_new_tokens=12))[0]
    said = "".join("".join(s.tokens[n] for n in s.path) + (s.own or "") for s in steps)
    assert said == engine.family.decode(plain.output_ids) and steps[0].before == ""
    assert any(len(who) == 2 for s in steps for who in s.drafters) and all(s.path or s.own for s in steps)
    for step in steps:
        assert step.mask.shape == (len(step.tokens),) * 2 and step.mask.diagonal().all()
        assert step.mask.sum(1).tolist() == [d + 1 for d in step.depths]
    shown = words(plots.tree(steps[1], ["near", "same"], "Step 2: "))
    assert {"near", "same", "accepted"} <= set(shown) and any(w.startswith("Step 2: ") for w in shown)


@pytest.mark.parametrize("drawing", ["without_replacement", "independent", "top_k"])
def test_the_walk_emits_by_the_targets_distribution(drawing):
    walks = [tree_steps.walk(drawing, seed) for seed in range(1200)]
    seen = Counter(w[-1].token for w in walks)
    assert stats.chisquare([seen[t] for t in range(len(P))], (P / P.sum() * len(walks)).numpy()).pvalue > 1e-4
    for trials in walks[:40]:
        assert [t.accepted for t in trials] == [False] * (len(trials) - 1) + [True]
        assert all(t.p.sum() == pytest.approx(1) for t in trials) and np.allclose(trials[0].p, P)
        if drawing == "without_replacement":
            for i, t in enumerate(trials[:-1]):
                assert all(t.q[e.token] == 0 for e in trials[:i])
    assert len({len(w) for w in walks}) == 4, "every ending occurs"


def test_pictures_of_tests_show_what_is_needed():
    trials = next(w for w in map(lambda s: tree_steps.walk(seed=s), range(99)) if len(w) == 2)
    shown = words(plots.trials(trials, 4, "some title"))
    assert sum("not needed" in w for w in shown) == 2 and "some title" in shown
    assert f"child 2: token {trials[1].token}" in shown and {"probability", "token"} <= set(shown)


def test_tokens_per_verification_are_a_ratio_of_sums():
    def runs(*lengths: int) -> list[list[Event]]:
        return [[Event("step", 0.0, 0, emitted=[0] * n, accepted=n - 1) for n in lengths]]

    assert trees.tokens_per_verification(runs(1, 3) + runs(2)).value == 2


def test_width_is_worth_more_where_later_guesses_are_right():
    good, poor = (trees.tokens_by_nodes(trees.by_rank(match), [1, 8]) for match in ((.5, .8, .9), (.5, .55, .56)))
    assert good["chain"] == poor["chain"] and good["chain"][0] == good["best tree"][0] == 1.5
    assert good["best tree"][1] > poor["best tree"][1] > poor["chain"][1]
    known = trees.recorded()
    assert len(known.match["greedy"][known.drafter]) == 5 and known.origin["commit"]
    assert known.best and all(tokens > 1 for tokens in known.best.values()) and known.cost and known.tau["greedy"]
    assert "the best tree" in "".join(words(plots.width([1, 8], {"A": good, "B": poor}, known.best, (8, 1.8))))


def test_without_a_stored_measurement_the_command_is_named(tmp_path):
    with pytest.raises(ValueError, match="bench trees --json"):
        trees.recorded(tmp_path)


def test_a_sibling_rescues_what_a_chain_would_lose():
    def step(parents, path):
        return tree_steps.TreeStep("", ["x"] * len(parents), parents, [], path, None).rescued
    assert step([-1, -1, 1, 2], [1, 2, 3]) == 3 and step([-1, 0, 0, 2], [0, 2, 3]) == 2
    assert step([-1, -1, 0], [0, 2]) == step([-1], []) == 0


def test_the_tables_and_the_map_are_drawn():
    ways, some = ("greedy", "sampled"), trees.Estimate(0.5, 0.4, 0.6)
    rates, tau = {way: {"a": [some] * 5} for way in ways}, {way: {1: trees.Estimate(1.5, None, None), 3: some} for way in ways}
    figure = plots.tables(rates, tau, {way: [0.5] * 5 for way in ways}, {way: {1: 2.0, 5: 3.0} for way in ways}, (rates, tau))
    assert {"a, measured", "SpecInfer, published"} <= set(words(figure))
    figure = plots.latency({1: {1: 20.0, 3: 15.0}, 8: {1: 10.0, 3: 13.0}})
    assert {"20 ms", "15 ms", "10 ms", "13 ms"} <= set(words(figure)) and \
        "takes 0.75× as long as with 1 at batch 1, 1.30× at 8" in figure.axes[0].get_title("left")


def test_the_editor_redraws_for_every_control_and_answers_nonsense_in_words(engine, monkeypatch):
    drawn = []
    monkeypatch.setattr(widgets.plots, "tree", lambda *args: drawn.append(args))
    monkeypatch.setattr("spin_core.lab.lessons.look.png", lambda figure: str(len(drawn)).encode())
    panel = widgets.editor(engine, {"one": "abcab", "two": "dd"}, [("near", "subset"), ("near",)], 8)
    (prompt, who), (shape,), (heat,), (number,) = (controls(panel, kind) for kind in (Dropdown, Text, FloatSlider, IntSlider))
    said = controls(panel, HTML)[0]
    for control, value in ((prompt, "two"), (who, ("near",)), (shape, "3"), (heat, 0.5), (number, 1)):
        before = len(drawn)
        control.value = value
        assert len(drawn) > before
    assert list(drawn[-1][1]) == ["near"] and "Step 1" in drawn[-1][2] and "temperature 0.5" in drawn[-1][2]
    before = len(drawn)
    shape.value = "two"
    assert len(drawn) == before and "tree shape" in panel.sign.value
    shape.value = "2"
    assert "tokens per verification" in said.value and panel.sign.value == panel.quiet


def test_the_stepper_draws():
    panel = widgets.stepper()
    first = bytes(panel.picture.value)
    controls(panel, IntSlider)[1].value = 2
    assert bytes(panel.picture.value) != first
