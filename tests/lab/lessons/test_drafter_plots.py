"""The pictures of the drafters' lesson say what they were given; its exercises know right from wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest
from matplotlib.figure import Figure

from spin_core.lab.bench.drafters import BY_PLACE
from spin_core.lab.lessons import look
from spin_core.lab.lessons.l2_drafters import measure, plots, widgets

SPEED = {"fed-1L-4k": 1.4, "table-4g": 1.1, "ngram": .9}


def texts(figure: Figure) -> str:
    return " ".join(t.get_text() for ax in figure.axes for t in ax.texts) + " ".join(ax.get_title() for ax in figure.axes) \
        + " ".join(ax.get_title("left") for ax in figure.axes)


def test_pick_hides_the_answer_until_there_is_a_choice():
    assert "1.40" not in texts(plots.pick("Rewrite this.", SPEED, None))
    assert "Right!" in texts(plots.pick("Rewrite this.", SPEED, "fed-1L-4k"))
    shown = texts(plots.pick("Rewrite this.", SPEED, "ngram"))
    assert "fed-1L-4k would have been better" in shown and "1.40 times plain decoding, best" in shown


def test_the_widget_hides_the_answer_of_a_new_request():
    panel = widgets.pick([("One", SPEED), ("Two", SPEED)])
    number, choice = panel.children[0].children
    choice.value = "ngram"
    revealed = panel.picture.value
    number.value = 2
    assert (choice.index, choice.value) == (0, "") and panel.picture.value != revealed
    with pytest.raises(ValueError, match="at least one request"):
        widgets.pick([])


def test_bars_of_shares_stand_on_each_other():
    share = {"chat": {"a": .25, "b": .75}, "mix": {"a": 1.0, "b": 0.0}}
    ax = plots.best_share(share, {"chat": 4, "mix": 8}, {"Alpaca": .03, "CP": .4}, {"CP": {"68M": 1.0}}, {}).axes[0]
    tops = np.array([[bar.get_y() + bar.get_height() for bar in bars] for bars in ax.containers])
    assert np.allclose(tops[1], 1) and ax.get_title("left").split() == "a is the best for 100% of the mix (68% to 100%)".split()


def test_the_titles_of_the_vocabulary_speak_of_the_chosen_size():
    left, right = plots.vocabulary([1024, 8192], [.6, .89], [20, 36], 8192, 120).axes
    assert left.get_title("left") == "8k ids cover 89% of the answers"
    assert right.get_title("left") == "30% of what the whole vocabulary reads"


def test_the_stored_measurement_is_drawn_and_this_run_beside_it(tmp_path):
    row = {"c": .05, "tau4": 2.0, "tau4_error": .1}
    mine = {"workload": "mix", "drafter": "new", "best_share": 1.0}
    assert measure.stored_rows([mine], tmp_path) == ([mine], {})
    assert measure.stored_agreement({"new": [.5]}, 3, tmp_path) == ({"new": [.5]}, {}, 3)
    places = [{"section": BY_PLACE, "drafter": "old", "requests": 216, "place": k, "agreement": .1 * k} for k in (2, 1)]
    (tmp_path / "data" / "box").mkdir(parents=True)
    (tmp_path / "data" / "box" / "any.json").write_text(json.dumps(
        {"name": "drafters", "cpu": "X", "rows": [{"workload": "mix", "drafter": "old", **row}, *places]}))
    rows, where = measure.stored_rows([mine], tmp_path)
    assert [r["drafter"] for r in rows] == ["old"] and where == {"provenance": {"cpu": "X"}}
    assert measure.stored_agreement({"new": [.5]}, 3, tmp_path) == ({"old": [.1, .2]}, where, 216)
    for figure in (plots.pool({"old": row, "ngram": row}, {"new": row, "old": row}, ["ngram"], title="t"),
                   plots.fed({"old": [.1, .2]}, {"new": [.5, .4]}, title="t"),
                   plots.training({"old": ([10, 1000], [1, 2])}, {"here": ([0, 100], [1, 1.2])}),
                   plots.best_share({"mix": {"old": 1.0}}, {}, {"CP": .4}, {"CP": {"68M": 1.0}}, {"mix": {"new": 1.0}})):
        assert len(look.png(figure, dpi=50)) > 1000
