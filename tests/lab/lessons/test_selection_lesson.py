"""The selection lesson: its numbers add up, its pictures render, its exercises know right from wrong."""

from __future__ import annotations

import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from spin_core.lab.lessons import look
from spin_core.lab.bench import peers
from spin_core.lab.lessons.l3_selection import measure as lesson, plots, widgets
from spin_core.lab.simulate.synthetic import synthetic

GAMMAS = {"reads": 4, "copies": 4}


@pytest.fixture(scope="module")
def recording():
    return lesson.shifting(12, shift=False)


@pytest.fixture(scope="module")
def oracle(recording):
    return lesson.ceiling(recording, GAMMAS)


def test_the_oracle_loses_no_second_against_itself_and_others_do(recording, oracle):
    best, run = oracle
    assert set(best) <= {0, 1, 2}
    _, lost = lesson.seconds_lost(run, run)
    np.testing.assert_allclose(lost, 0, atol=1e-12)
    tokens, lost = lesson.seconds_lost(lesson.play(recording, "random", GAMMAS), run)
    assert (np.diff(tokens) > 0).all() and lost[-1] > 0


def test_the_map_of_choices_holds_every_step_once(recording):
    run = lesson.play(recording, "spin", GAMMAS)
    grid = lesson.choice_map(run, 500)
    assert (grid >= 0).sum(1).tolist() == np.bincount(run.request).tolist()
    for request in range(len(recording)):
        assert grid[request][grid[request] >= 0].tolist() == run.arm[run.request == request].tolist()


def test_windows_add_up_to_the_replay(recording):
    run = lesson.play(recording, "spin-full", GAMMAS)
    tokens, goodput, shares = lesson.window(run, 10)
    assert tokens[-1] == run.tokens
    seconds = np.diff(np.append(0, tokens)) / goodput
    assert seconds.sum() == pytest.approx(run.wall)
    np.testing.assert_allclose(shares.sum(1), 1)


def test_on_an_endless_request_random_choice_loses_in_proportion_and_learners_less():
    curves, slope = lesson.endless(["random", "thompson"], 200, 2)
    assert slope > 0
    assert curves["thompson"][1][-1] < .6 * curves["random"][1][-1]


def test_on_an_endless_request_luck_does_not_count():
    """Who always asks the better drafter loses nothing, who never does loses the same at every step."""
    curves, _ = lesson.endless(["fixed:good", "fixed:poor"], 100, 1)
    np.testing.assert_allclose(curves["fixed:good"][1], 0, atol=1e-6)
    assert (np.diff(curves["fixed:poor"][1]) > .5).all() and np.ptp(np.diff(curves["fixed:poor"][1])) < 1e-6


def test_what_was_really_served_goes_by_the_names_of_the_replay(tmp_path):
    assert lesson.live(directory=tmp_path) == {}
    (tmp_path / "data" / "box").mkdir(parents=True)
    rows = [{"contender": who, "drafter": drafter, "temperature": heat, "batch": batch, "mix": rate}
            for who, drafter, heat, batch, rate in (
                (peers.PLAIN, "none", 0.0, 8, 40.0), (peers.FIXED, "ngram", 0.0, 8, 50.0), (peers.SPIN, None, 0.0, 8, 60.0),
                (peers.PLAIN, "none", 0.0, 1, 10.0), (peers.FIXED, "ngram", 1.0, 8, 20.0))]
    (tmp_path / "data" / "box" / "any.json").write_text(json.dumps(
        {"name": "peers", "rows": [*rows, {"contender": "a ceiling", "temperature": 0.0, "batch": 8}]}))
    assert lesson.live(directory=tmp_path) == {"box": {"fixed:ngram": 1.25, "spin": 1.5}}


def test_the_stored_goodput_counts_where_it_knows_all_policies(tmp_path):
    (tmp_path / "data" / "box").mkdir(parents=True)
    rows = [{"costs": costs, "policy": policy, "goodput": rate, "share_of_oracle": rate / 100, "+-": half}
            for costs, policy, rate, half in (("measured", "spin", 90.0, .01), ("measured", "none", 50.0, .02),
                                              ("measured", "oracle-step", 120.0, None), ("memory-bound", "spin", 9.0, .01))]
    (tmp_path / "data" / "box" / "any.json").write_text(json.dumps({"name": "select", "cpu": "X", "rows": rows}))
    known, where = lesson.stored_goodput(["spin", "fixed:none"], tmp_path)
    assert known["spin"] == pytest.approx((90, 1)) and known["fixed:none"] == pytest.approx((50, 2))
    assert known["oracle-step"] == (120, 0) and where == {"provenance": {"cpu": "X"}}
    assert lesson.stored_goodput(["spin", "fixed:new"], tmp_path) == ({}, {})


def test_the_late_share_looks_at_the_second_half_of_every_request():
    run = SimpleNamespace(request=np.array([0, 1, 0, 1, 0, 0]), arm=np.array([2, 1, 2, 0, 1, 2]))
    assert lesson.late_share(run, np.array([1, 0])) == pytest.approx((1 / 2 + 1) / 2)


def test_a_shift_changes_who_is_best():
    first, second = (lesson.shifting(24, shift=True).take(rows) for rows in (range(12), range(12, 24)))
    assert np.mean(lesson.ceiling(first, GAMMAS)[0] == 0) > .7 and np.mean(lesson.ceiling(second, GAMMAS)[0] == 1) > .7


def test_all_pictures_render_without_a_warning(recording, oracle):
    best, run = oracle
    grid = lesson.choice_map(run, 20)
    pictures = [
        lambda: plots.bars({"spin": (3.0, .1), "fixed:reads": (2.0, .1)}, {"oracle-request": 3.2}, {"one": 32.21, "SPIN": 62.33}, {"spin": (2.9, .2)}, title="t"),
        lambda: plots.regret({"spin": ([1, 2], [0, 1])}, {"spin": ([1, 40], [0, 1]), "greedy": ([1, 40], [0, 9])}, .1),
        lambda: plots.choices({"a": grid, "b": grid}, run.arms, best),
        lambda: plots.choices({"a": grid}, run.arms, best, most=3),
        lambda: plots.capacity([0, 8], {"spin": [1, 2], "fixed:reads": [1, 1]}),
        lambda: widgets.story(16, True, 1, 4, 8.0, 4)[0]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for picture in pictures:
            assert len(look.png(picture(), dpi=50)) > 1000


def test_the_titles_of_choices_say_how_often_a_request_has_the_drafter_of_its_strip():
    grid = np.array([[0, 0, 1, -1], [1, 1, 1, 0]])
    axes, = plots.choices({"spin": grid}, ["reads", "copies"], [0, 1]).axes
    assert axes.get_title("left") == "spin: the strip's drafter in 71% of the steps"          # 5 of 7


def test_no_marker_of_the_places_is_cut_off():
    axes, = plots.capacity([0, 8], {"spin": [290, 294], "greedy": [248, 236]}).axes
    low, high = axes.get_ylim()
    assert low == 0 and high > 1.05 * 294


def test_the_widget_follows_its_controls():
    panel = widgets.replayed(16)
    count, shift, *_, places = panel.controls
    setting = [control.value for control in panel.controls]
    assert look.png(widgets.story(*setting)[0]) == panel.picture.value      # what is shown where widgets do not run
    seen = {panel.picture.value}
    for control, value in ((shift, False), (places, 0)):
        control.value = value
        seen.add(panel.picture.value)
    assert len(seen) == 3


def test_unknown_workloads_are_refused():
    with pytest.raises(ValueError, match="workload 'poems'"):
        synthetic({}, {"a": .1}, ["poems"])
