"""The pipeline's lesson: its exercises are checked rightly, its pictures and widgets show what they are given."""

from __future__ import annotations

import io
import json
import warnings

import matplotlib
import pytest
import tiny
from matplotlib.image import imread
from test_plots import words

from spin_core.lab.bench import pipeline as bench
from spin_core.engine import Engine
from spin_core.lab.lessons.l5_pipeline import measure as lesson, plots, widgets
from spin_core.pipeline import Decision, simulate
from spin_core.lab.lessons.look import png
from spin_core.request import SamplingParams

matplotlib.use("Agg")
PARAMS = SamplingParams(max_new_tokens=24, stop_ids=())
PROMPTS = [[i, 4, i] for i in range(4)]


TURNS, BESIDE = simulate([1.0], [2.0], 2, overlap=False), simulate([0.5] * 2, [1.0] * 2, 2)
CLIMB = [Decision(0, 1, "start with one", {}), Decision(1, 2, "try one more", {1: 9.0}),
         Decision(2, 1, "more is worse", {1: 9.0, 2: 7.0})]
GOODPUT = {s: dict(goodput=9.0 - i, low=8.0 - i, high=10.0) for i, s in enumerate(("off", 1, 2, "auto"))}
FIGURES = {
    "gantt": lambda: plots.gantt({"turns": TURNS, "beside": BESIDE}, title="t"),
    "idle gantt": lambda: plots.gantt({"idle": BESIDE.between(50, 51)}),
    "microbatches": lambda: plots.microbatches(GOODPUT, {"m": {1: 1.0, 2: 1.2}}, {1: 1, 4: 1.29}, GOODPUT),
    "nothing published": lambda: plots.microbatches(GOODPUT, {"m": {1: 1.0}}, {}),
    "heuristic": lambda: plots.heuristic(CLIMB, "a model"),
}


def test_the_legend_of_a_gantt_chart_leaves_room_for_a_long_title():
    figure = plots.gantt({"turns": TURNS}, title="two micro-batches: overlap efficiency 100% instead of 87%, so far")
    figure.draw_without_rendering()
    assert not figure.legends[0].get_window_extent().overlaps(figure.axes[0].title.get_window_extent())


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_renders_without_a_warning(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert imread(io.BytesIO(png(FIGURES[name](), dpi=60))).shape[1] == pytest.approx(576, abs=1)


def test_the_chart_prints_busy_shares_and_efficiency():
    said = words(FIGURES["gantt"]())
    assert "33% busy" in said and "67% busy" in said and "overlap efficiency 67%" in said
    assert f"overlap efficiency {BESIDE.efficiency:.0%}" in said and "bubble: the stage waits" in said


def test_what_the_benchmark_stored_is_read(tmp_path):
    assert lesson.stored_counts(tmp_path) is None
    rows = [{"what": "picking", "micro_batches": m, "goodput": 9.0, "low": 8.0, "high": 9.5} for m in ("off", 1, 2)]
    rows += [{"what": "compared", "micro_batches": m, "goodput": 7.0, "low": 6.0, "high": 7.5} for m in ("off", "auto")]
    rows += [{"what": "stage", "stage": s, "threads": 2, "seconds": t, "fixed": 0.0} for s, t in (("draft", 1.0), ("verify", 2.0))]
    (tmp_path / "data/box").mkdir(parents=True)
    (tmp_path / "data/box/pipeline.json").write_text(json.dumps({"name": "pipeline", "date": "2026", "cpu": "box", "rows": rows}))
    goodput, stages, origin = lesson.stored_counts(tmp_path)
    assert goodput["off"]["goodput"] == 9 and goodput["auto"]["goodput"] == 7 and origin["cpu"] == "box"
    lines = lesson.modelled(stages, [1, 2])
    assert lines["a device per stage"] == {1: 1.0, 2: 1.5} and lines["half the cores per stage"][1] == 1


def test_the_longest_climb_is_shown():
    other = [Decision(5, 1, "another load", {}), Decision(6, 1, "one more gains 2% at most", {1: 3.0})]
    assert lesson.climb([*CLIMB, *other]) == CLIMB
    assert lesson.climb(CLIMB[:2]) == CLIMB[:1] and lesson.climb(other) == other and lesson.climb([]) == []


def test_sliders_simulate_and_runs_are_replayed():
    panel = widgets.overlap(draft=20, verify=40, fixed=0.3, count=2)
    before = panel.picture.value
    panel.children[0].children[3].value = 5
    assert panel.picture.value != before
    engine = Engine(tiny.family(), "near", 3, pipeline=2)
    with pytest.raises(ValueError, match="no verification"):
        widgets.replay(engine)
    engine.generate(PROMPTS, PARAMS)
    panel = widgets.replay(engine)
    before = panel.picture.value
    engine.generate(PROMPTS[:2], PARAMS)
    panel.children[0].children[0].click()
    assert panel.picture.value != before


def test_the_benchmark_compares_engines_over_a_full_batch():
    contestants = bench.engines(tiny.family(), 4, [1, 2, 9], drafter="near", gamma=2)
    assert list(contestants) == ["off", 1, 2, "auto"], "no more micro-batches than requests"
    runs = bench.sweep(contestants, PROMPTS, PARAMS, repeats=2, warm=1)
    assert all(run.texts == runs["off"][0].texts for some in runs.values() for run in some)
    assert runs[2][0].count == 2 and 0 < runs[2][0].schedule.efficiency <= 1
    rows = bench.summarise(runs)
    assert rows["off"]["draft_busy"] + rows["off"]["verify_busy"] <= 1 + 1e-9 and rows[1]["goodput"] > 0
    assert bench.ratio(runs, "off", "off") == 1
    with pytest.raises(ValueError, match="allow more new tokens"):
        bench.measure([], [object()])


def test_synthetic_stages_overlap_and_the_interpreter_lock_is_measured(monkeypatch):
    monkeypatch.setattr(bench, "TRIALS", 1)
    turns, beside = bench.synthetic(5e-4, 5e-4, rounds=4, count=2)
    assert turns["micro_batches"] == 1 and beside["micro_batches"] == 2
    assert turns["efficiency"] > 0 and beside["efficiency"] > 0     # how much is for a quiet machine to say
    assert [row["slowdown"] > 0 for row in bench.interpreter_lock()] == [True, True]
