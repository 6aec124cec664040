"""Widgets without a browser: what their controls do to the picture, and what is stored."""

from __future__ import annotations

import pytest
from ipywidgets import Button, Dropdown, FloatSlider, IntSlider
from matplotlib.figure import Figure
from test_plots import ACCEPTING, CUT, PLAIN, REJECTING

from spin_core.lab.lessons import look
from spin_core.lab.lessons.l1_speculation import plots, widgets
from spin_core.lab.lessons.l1_speculation.steps import Step


@pytest.fixture
def drawn(monkeypatch) -> list[tuple]:
    """Record calls instead of drawing: (function, arguments)."""
    calls = []
    for name in ("step", "theory", "acceptance_by_position"):
        monkeypatch.setattr(plots, name, lambda *a, _name=name, **k: calls.append((_name, a, k)) or Figure())
    monkeypatch.setattr(look, "png", lambda figure: f"picture {len(calls)}".encode())
    return calls


def controls(panel, kind) -> list:
    return [c for c in panel.children[0].children if isinstance(c, kind)]


def test_stepper_goes_through_steps_and_places(drawn):
    steps = [REJECTING, ACCEPTING, CUT, PLAIN]
    panel = widgets.stepper(steps)
    back, forth = controls(panel, Button)
    number, place = controls(panel, IntSlider)

    def last() -> tuple[Step, int, str]:
        _, (step, at), keywords = drawn[-1]
        return step, at, keywords["title"]

    assert last() == (REJECTING, 1, "Step 1 of 4")          # opens where the step was decided: its rejection
    assert back.disabled and not forth.disabled
    forth.click()
    assert last() == (ACCEPTING, 2, "Step 2 of 4")          # the bonus place
    assert (number.value, place.value, place.max) == (2, 3, 3)
    place.value = 1
    assert last() == (ACCEPTING, 0, "Step 2 of 4")
    number.value = 4
    assert last() == (PLAIN, 0, "Step 4 of 4") and place.max == 1
    assert forth.disabled
    forth.click()                                           # nowhere to go
    back.click()
    assert last() == (CUT, 1, "Step 3 of 4")


def test_one_move_is_one_picture(drawn):
    panel = widgets.stepper([REJECTING, PLAIN])
    before = len(drawn)
    controls(panel, Button)[1].click()
    assert len(drawn) == before + 1
    assert panel.picture.value == f"picture {len(drawn)}".encode()


@pytest.mark.parametrize("steps", [[], [Step("", ["a"], ["accepted"], "b", "bonus")]])
def test_stepper_says_what_it_needs(steps):
    with pytest.raises(ValueError, match="record_probs"):
        widgets.stepper(steps)


def test_theory_follows_its_sliders(drawn):
    panel = widgets.theory(0.7, 0.1)
    alpha, cost = controls(panel, FloatSlider)
    alpha.value = 0.9
    cost.value = 0.2
    assert [arguments for _, arguments, _ in drawn] == [(0.7, 0.1), (0.9, 0.1), (0.9, 0.2)]


def test_acceptance_adds_up_the_workloads_and_picks_drafters(drawn):
    counts = {"chat": {"a": ([4, 2], [2, 1]), "b": ([1, 0], [0, 0])},
              "personas": {"a": ([6, 3], [3, 3]), "b": ([1, 1], [1, 1])}}
    panel = widgets.acceptance(counts)
    workload, drafter = controls(panel, Dropdown)

    def last() -> dict:
        return {d: tuple(map(list, pair)) for d, pair in drawn[-1][1][0].items()}

    assert last() == {"a": ([10, 5], [5, 4]), "b": ([2, 1], [1, 1])}
    drafter.value = "a"
    workload.value = "chat"
    assert last() == {"a": ([4, 2], [2, 1])}
    assert drawn[-1][2]["title"] == "Acceptance by place: chat"


def test_a_real_picture_changes_and_stays_small():
    panel = widgets.stepper([REJECTING, ACCEPTING])
    first = bytes(panel.picture.value)
    assert first.startswith(b"\x89PNG") and len(first) < 120_000
    controls(panel, Button)[1].click()
    assert bytes(panel.picture.value).startswith(b"\x89PNG") and bytes(panel.picture.value) != first
