"""What the lesson on request decomposition counts, times and draws."""

from __future__ import annotations

import io
import json
import warnings
from types import SimpleNamespace

import pytest
import tiny
import torch
from ipywidgets import Button, FloatSlider, IntSlider
from matplotlib.figure import Figure
from matplotlib.image import imread

from spin_core.lab.results import figures
from spin_core.decompose import plan
from spin_core.decompose.costs import Heads, typical
from spin_core.lab.lessons.l4_decomposition import measure as padding, plots, widgets
from spin_core.lab.results import stored
from spin_core.lab.lessons.l4_decomposition.measure import Lengths, skewed_lengths
from spin_core.lab.lessons.l4_decomposition.memory import peak_bytes, verification_memory
from spin_core.lab.lessons.look import png

HEADS, DIM = Heads(3, 3), 64
PRICES = typical(torch.float32, HEADS, DIM)
SKEWED = [700, 60, 80, 90, 100, 70, 120, 50]


# ---- lengths

def test_lengths_are_prompts_and_parts_of_answers():
    family = SimpleNamespace(encode=lambda messages: messages[-1]["content"].split())
    lengths = Lengths(family, "instructions", answer=30)
    drawn = lengths.draw(300, seed=1)
    assert drawn[:7] == lengths.draw(7, seed=1) != lengths.draw(7, seed=2)
    assert min(lengths.prompts) <= min(drawn) and max(drawn) <= max(lengths.prompts) + 30 == lengths.longest
    assert not set(drawn) <= set(lengths.prompts), "answers are under way"
    assert lengths.draw(7, seed=1, new=5) == [n + 5 for n in drawn[:7]]


def test_skewed_lengths():
    assert skewed_lengths(4, 80, 0.0) == [80] * 4
    assert skewed_lengths(3, 400, 0.75) == [400, 200, 100]
    assert skewed_lengths(2, 64, 0.95, shortest=16) == [64, 16]


# ---- the pass

def test_a_pass_is_timed_in_every_way_and_gives_the_same_logits(monkeypatch):
    monkeypatch.setattr("spin_core.decompose.strategies.measured", lambda *_: typical(torch.float64, Heads(2, 2), 8))
    timer = padding.PassTimer(tiny.family(), 4, 64)
    runner, seen = timer.runner, []
    forward = runner.forward
    monkeypatch.setattr(runner, "forward", lambda *args: seen.append(forward(*args)))
    first, second = timer.seconds([[40, 7, 1], [16, 16]], gamma=3, repeats=2)
    for times in (first, second):
        assert set(times) == {"padded", "padded_view", "auto"}
        assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in times.values())
    rows = [logits.shape[0] for logits in seen]
    assert rows == [8] * 3 + [12] * 3 + ([12] * 3 + [8] * 3) * 2, "each size warms up; batches take turns, and their ways"
    for i, logits in enumerate(seen):       # of three ways in turn each finds the cache as the one before it did
        torch.testing.assert_close(logits, seen[i - i % 3], rtol=1e-9, atol=1e-9)


def test_the_share_lost_is_that_of_the_slower_way():
    runs = [{"padded": [4.0], "padded_view": [2.0], "auto": [2.0]}, {"padded": [5.0], "padded_view": [1.0], "auto": [2.0]}]
    assert padding.share_lost(runs, "padded") == pytest.approx((0.55, 0.5, 0.6))
    assert padding.share_lost(runs, "padded_view") == pytest.approx((-0.5, -1.0, 0.0))


def test_a_round_that_the_machine_slowed_down_changes_no_share():
    quiet, disturbed = [{"padded": [4.0] * 5, "auto": [2.0] * 5}], [{"padded": [4, 12, 4, 4, 80], "auto": [2, 6, 2, 2, 2]}]
    assert padding.share_lost(quiet, "padded") == padding.share_lost(disturbed, "padded") == (0.5, 0.5, 0.5)


# ---- memory

def test_the_peak_is_the_most_that_lives_at_once():
    kilobytes = lambda n: torch.empty(256 * n)  # noqa: E731

    def work():
        first = kilobytes(300)
        del first
        second, third = kilobytes(200), kilobytes(50)
        return second.shape, third.shape

    assert peak_bytes(work) == pytest.approx(300 * 1024, rel=0.01)


def test_what_is_allocated_is_what_the_plan_copies():
    """Copies of keys and values make up nearly all of it; masks, queries and room to grow are the rest."""
    memory = verification_memory(SKEWED, 5, PRICES, layers=30, dim=DIM)
    token = 2 * HEADS.kv * DIM * 4                                      # bytes of a layer's keys and values
    for way in ("padded", "decomposed"):
        made = plan(SKEWED, [5] * len(SKEWED), way, costs=PRICES)
        assert token * made.kv_touched <= memory[way].extra <= 1.5 * token * made.kv_touched, way
    assert memory["per_request"].extra < 0.3 * memory["decomposed"].extra < 0.3 * memory["padded"].extra
    assert memory["decomposed"].held == memory["per_request"].held == 30 * token * sum(SKEWED)
    assert memory["padded_view"].held == 30 * token * max(SKEWED) * len(SKEWED)


def test_there_is_a_batch_that_fits_decomposed_and_not_padded():
    sizes, arriving = (2, 4, 8), sorted(SKEWED[:4]) + SKEWED[4:]
    batches = [verification_memory(arriving[:n], 5, PRICES, layers=30, dim=DIM) for n in sizes]
    budget = batches[-1]["decomposed"].total
    assert [memory["decomposed"].total <= budget for memory in batches] == [True, True, True]
    assert [memory["padded_view"].total <= budget for memory in batches] == [True, False, False]


# ---- numbers from elsewhere

def test_stored_numbers_keep_their_origin():
    skews, found = padding.attention_elsewhere(5)["h100, batch 16"]
    origin = found.origin
    assert "H100" in origin["gpu"] and origin["versions"]["torch"] and "rows" not in origin
    assert (origin["commit"] is None) == ("note" in origin), "an unknown commit is explained"
    assert set(skews) == {"equal", "alpaca", "spread", "one long"} and "plan" not in skews["alpaca"]
    figures._series("a series", dict(label="x", kind="measured", x=[1], y=[1], provenance=origin))
    assert json.dumps(origin)


def put(folder, path: str, **report) -> None:
    """A report as ``--json`` writes it, in ``folder/data``."""
    path = folder / "data" / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"notes": [], "bars": [], **report}))


def test_a_report_counts_wherever_it_is_and_the_newest_counts(tmp_path):
    assert stored.stored("x", directory=tmp_path) == []
    put(tmp_path, "b/x.json", name="x", rows=[{"n": 1}, {"n": 2}], cpu="B", date="2026-02")
    put(tmp_path, "b/gpu.json", name="gpu", rows=[{"section": "x", "n": 3}, {"section": "y", "n": 4}], date="2026-01")
    put(tmp_path, "a/any.json", name="gpu", rows=[{"section": "x", "n": 5}])
    put(tmp_path, "c/gpu.json", name="gpu", rows=[{"section": "x", "n": 6}], notes=["dry run: means nothing"])
    a, b = stored.stored("x", directory=tmp_path)
    assert (a.machine, [r["n"] for r in a.rows]) == ("a", [5])
    assert (b.machine, [r["n"] for r in b.rows], b.origin) == ("b", [1, 2], {"cpu": "B", "date": "2026-02"})
    older = stored.stored("x", lambda row: row["n"] == 3, tmp_path)
    assert [(found.machine, len(found.rows)) for found in older] == [("b", 1)], "a newer file without such rows hides none"


def test_attention_of_every_machine_is_shown_also_from_bench_gpu(tmp_path):
    row = {"batch": 4, "q": 5, "skew": "equal", "padded_us": 2.0, "auto_us": 1.0, "plan_us": 9.0, "keys": 7}
    put(tmp_path, "card/gpu.json", name="gpu", gpu="G", rows=[
        {"section": "verify-attention", **row}, {"section": "verify-attention", **row, "batch": 8, "auto_us": 3.0},
        {"section": "verify-attention", **row, "q": 1}, {"section": "system", "batch": 8}])
    put(tmp_path, "box/attention.json", name="verify-attention", rows=[row])
    shown = padding.attention_elsewhere(5, tmp_path)
    assert {name: skews for name, (skews, _) in shown.items()} == {
        "box, batch 4": {"equal": {"padded": 2.0, "auto": 1.0}}, "card, batch 8": {"equal": {"padded": 2.0, "auto": 3.0}}}
    assert shown["card, batch 8"][1].origin == {"gpu": "G"}


# ---- pictures

TIMES = {"padded": 9.0, "padded_view": 7.0, "decomposed": 4.0, "grouped": 3.0, "per_request": 3.0, "auto": 3.0}
FIGURES = {
    "batching_loss": lambda: plots.batching_loss(
        {"padded": {1: (0.1, 0.0, 0.2), 8: (0.2, 0.1, 0.3)}, "equal": {1: (0.0, 0.0, 0.0), 8: (-0.1, -0.1, 0.0)}},
        {"padded_view": {1: 0.0, 8: 0.1, 32: 0.2}}, 0.3),
    "verify_latency": lambda: plots.verify_latency(
        {4: TIMES, 8: TIMES}, {"equal": TIMES, "one long": TIMES}, {"published": {"padded": 529.21, "decomposed": 335.46}},
        {"H100": {"equal": TIMES | {"flex": 2.0, "varlen": 1.0}}, "CPU": {"one long": TIMES}}, here="this CPU"),
    "nothing from elsewhere": lambda: plots.verify_latency({4: TIMES}, {"equal": TIMES}, {}, {}, here="this CPU"),
    "verify_memory": lambda: plots.verify_memory(
        [2, 32], {"padded_view": [1e6, 9e6], "decomposed": [1e6, 4e6]}, {"padded_view": [1e4, 1e5], "decomposed": [2e5, 4e5]},
        5e6, {"padded_view": [14e9, 30e9], "decomposed": [14e9, 20e9]}, {"16 GB": 16e9}, 32),
    "many rows": lambda: plots.packing_and_costs(plan([1024] * 24, [5] * 24, "decomposed", costs=PRICES, width=64),
                                                 plan([1024] * 24, [5] * 24, "decomposed", costs=PRICES), 64),
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_a_column_wide_and_renders_without_a_warning(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image = imread(io.BytesIO(png(FIGURES[name](), dpi=50)))
    assert image.shape[1] == pytest.approx(480, abs=1)


def test_the_ring_is_around_the_plan_s_choice():
    ax = FIGURES["verify_latency"]().axes[0]
    rings = [line for line in ax.lines if line.get_markersize() == plots.RING["markersize"]]
    alone = next(line for line in ax.lines if line.get_marker() == plots.WAYS["per_request"][1])
    assert [ring.get_xdata()[0] for ring in rings] == pytest.approx(list(alone.get_xdata()))
    assert [ring.get_ydata()[0] for ring in rings] == [3.0, 3.0]


# ---- the widget

def test_the_widget_cuts_the_batch_it_shows(monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "packing_and_costs", lambda *plans: drawn.append(plans) or Figure())
    monkeypatch.setattr("spin_core.lab.lessons.look.png", lambda figure: b"")
    panel = widgets.packing(PRICES)
    controls = panel.children[0].children
    requests, longest, drafted, width = (c for c in controls if isinstance(c, IntSlider))
    skew, = (c for c in controls if isinstance(c, FloatSlider))
    button, = (c for c in controls if isinstance(c, Button))
    shown, cheapest, asked = drawn[-1]
    assert shown.width == max(shown.lengths) == asked == longest.value, "it opens as a padded batch"
    assert len(shown.pieces) == len(shown.lengths) == requests.value
    button.click()
    shown, cheapest, asked = drawn[-1]
    assert shown.width == cheapest.width == asked == width.value < longest.value
    assert shown.seconds == pytest.approx(min(cheapest.considered.values()))
    skew.value = 0.0
    assert len(set(drawn[-1][0].lengths)) == 1
    drafted.value = 9
    assert set(drawn[-1][0].q_lens) == {10}
    before = len(drawn)
    requests.value = 3
    assert len(drawn) == before + 1 and len(drawn[-1][0].lengths) == 3
