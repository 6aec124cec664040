"""Sweeps on a small family, and the clock's arithmetic on events made by hand."""

from __future__ import annotations

import json
import math
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import tiny

from spin_core.lab.lessons.l1_speculation import plots
from spin_core.engine import Engine
from spin_core.lab.lessons import begin, measured, modelled, say, show
from spin_core.lab.lessons.l1_speculation.measure import (
    full_steps, goodput, phase_milliseconds, recorded_speed, recorded_steps, sweep)
from spin_core.lab.simulate.recording import Passes, Recording
from spin_core.request import SamplingParams
from spin_core.trace import Event


def event(emitted: int, seconds: float = 1.0, drafted: int = 0, accepted: int = 0, **phases) -> Event:
    return Event("step", 0.0, 0, drafted=[1] * drafted, accepted=accepted, emitted=[1] * emitted,
                 step_seconds=seconds, **phases)


def test_sweep_runs_every_prompt_with_every_setting_in_turns():
    engine = Engine(tiny.family(), "near", max_batch=1)
    prompts, settings = [[5, 9], [7, 8, 9]], [("none", 0), ("near", 1), ("near", 3), ("ngram", 3)]
    runs = sweep(engine, prompts, SamplingParams(max_new_tokens=9, stop_ids=()), settings)
    assert list(runs) == settings
    texts = {setting: [[t for e in run for t in e.emitted] for run in runs[setting]] for setting in settings}
    assert all(text == texts["none", 0] for text in texts.values()), "one greedy text for every drafter"
    assert [len(t) for t in texts["none", 0]] == [9, 9]
    assert all(not e.drafted for run in runs["none", 0] for e in run)
    assert max(len(e.drafted) for run in runs["near", 3] for e in run) == 3
    order = [(e.request, e.drafter) for e in engine.trace.events if e.kind == "step"]
    names = [name for _, name in dict(order).items()]
    assert names == ["near"] + ["none", "near", "near", "ngram"] * 2, "one warm-up, then turns"


def test_full_steps_leave_out_short_drafts_and_texts_cut_by_a_stop():
    keep = [event(1, drafted=3), event(4, drafted=3, accepted=3)]
    leave = [event(2, drafted=2, accepted=1), event(2, drafted=3, accepted=2), event(1)]
    assert full_steps([[keep[0], leave[0]], [leave[1], keep[1], leave[2]]], 3) == keep


def test_goodput_counts_tokens_and_seconds_after_the_first_step():
    runs = [[event(9, 100.0), event(2, 1.0), event(4, 1.0)], [event(9, 100.0), event(1, 2.0)],
            [event(5, 1.0)]]
    assert goodput(runs) == 7 / 4 and math.isnan(goodput([[event(5)]]))


def test_recorded_steps_and_speed_by_hand():
    """Two answers of three and two tokens; a model, and a lookup that finds something once."""
    recording = Recording(("model", "lookup"), np.array([[1, 0, 0, 1, 0], [1, 0, 0, 0, 0]], np.uint8),
                          np.array([[2] * 5, [2, 0, 0, 0, 0]], np.uint8), np.array([0, 3, 5]), np.array([1, 1]), ("w",) * 2,
                          ("a", "b"), {n: Passes((1, 3), times) for n, times in
                                       (("model", (1, 1)), ("lookup", (.5, .5)), ("target", (10, 14)))}, ("lookup",))
    steps = {name: [s.tolist() for s in recorded_steps(recording, name, 2)] for name in recording.arms}
    assert steps == {"model": [[[2, 1], [0, 0]], [[1, 1]]], "lookup": [[[2, 1], [0, 0]], [[0, 0], [0, 0]]]}
    assert recorded_speed(recording, "model", 2)[0] == pytest.approx(50 / (2 + 14 + 10 + 1 + 12))
    assert recorded_speed(recording, "lookup", 2)[0] == pytest.approx(50 / (4 * .5 + 14 + 3 * 10))


def test_phases_are_medians_and_add_up():
    steps = [event(1, s, draft_seconds=0.2 * s, target_seconds=0.5 * s, verify_seconds=0.1 * s)
             for s in (9.0, 1.0, 2.0, 50.0)]
    phases = phase_milliseconds([steps])
    assert phases == pytest.approx({"drafting": 400, "target pass": 1000, "accept / reject": 200,
                                    "the rest": 400})
    with pytest.raises(ValueError, match="first step"):
        phase_milliseconds([steps[:1]])


def test_show_saves_the_numbers_and_displays_the_picture_with_its_caption(tmp_path, monkeypatch):
    displayed = []
    monkeypatch.setattr(import_module("spin_core.lab.lessons.show"), "display", displayed.append)
    show("name", plots.theory(0.5, 0.1), measured("a", [1], [2.0], error=[0.1]),
         modelled("b", [1], [3.0], source="a formula"), caption="What it shows.", directory=tmp_path)
    (image,) = displayed
    assert image.data.startswith(b"\x89PNG") and image.alt == "What it shows." and image.width == 960
    saved = json.loads((tmp_path / "name.json").read_text())
    told = [(s["label"], s["kind"], s["y"]) for s in saved["series"]]
    assert told == [("a", "measured", [2.0]), ("b", "modelled", [3.0])]
    assert saved["series"][0]["error"] == [0.1]
    assert (tmp_path / "name.svg").exists()


def test_a_lesson_begins_with_its_machine_its_sizes_and_its_folder_of_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(import_module("spin_core.lab.lessons.show"), "display", lambda image: None)
    assert begin("quick", tmp_path / "here", quick=3, default=5) == 3
    assert "torch " in (out := capsys.readouterr().out) and "profile quick" in out
    show("name", plots.theory(0.5, 0.1), measured("a", [1], [2.0]), caption="What it shows.")
    assert (tmp_path / "here" / "name.json").exists()
    monkeypatch.chdir(tmp_path)
    begin("default", quick=3, default=5)
    show("name", plots.theory(0.5, 0.1), measured("a", [1], [2.0]), caption="What it shows.")
    assert (tmp_path / "figures" / "name.png").exists(), "beside the notebook, not in the checkout"
    with pytest.raises(ValueError, match="profile 'Quick': choose quick, default"):
        begin("Quick", quick=3, default=5)


def test_printed_lines_are_short_and_break_between_words(capsys):
    say(f"first: {'word ' * 40}\nsecond")
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == "second" and max(map(len, lines)) <= 88 and {*" ".join(lines).split()} == {"first:", "word"}


@pytest.mark.parametrize("given, unknown", [("profile = 'quick'", ""), ("profil = 'quick'\nwide = 3", "profil, wide")])
def test_a_parameter_that_a_lesson_does_not_have_is_refused_by_name(tmp_path, monkeypatch, given, unknown):
    cells = ["", "# defaults\nprofile = 'default'\nfigures_dir = ''", f"# Parameters\n{given}\n", "%matplotlib inline"]
    monkeypatch.setattr(import_module("spin_core.lab.lessons.show"), "get_ipython",
                        lambda: SimpleNamespace(user_ns={"In": cells}))
    if not unknown:
        assert begin("quick", tmp_path, quick=3) == 3
    else:
        with pytest.raises(ValueError, match=f"unknown parameters {unknown}; known: figures_dir, profile"):
            begin("quick", tmp_path, quick=3)
