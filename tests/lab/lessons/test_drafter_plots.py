"""The pictures of the drafters' lesson say what they were given; its exercises know right from wrong."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from spin_core.lab.lessons.l2_drafters import plots, widgets

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
    ax = plots.best_share(share, {"chat": 4, "mix": 8}, {"Alpaca": .03, "CP": .4}).axes[0]
    tops = np.array([[bar.get_y() + bar.get_height() for bar in bars] for bars in ax.containers])
    assert np.allclose(tops[-1], 1)
