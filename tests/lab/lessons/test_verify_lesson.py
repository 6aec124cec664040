"""The lesson on the verify kernel: its numbers come from where they should, its pictures show them."""

from __future__ import annotations

import json
import warnings

import matplotlib
import pytest
import torch
from test_trees_lesson import words

from spin_core.lab.lessons.l1_speculation import plots
from spin_core.lab.lessons import look
from spin_core.lab.lessons.l6_verify_kernel import checks, measure as verify_times, plots as verify_kernel


def test_timings_of_every_way_and_case():
    ways = verify_times.on_cpu([(300, 1), (300, 2)], repeats=1)
    assert list(ways) == ["torch reference", "textbook loop", "loop with our draws"]
    assert all(len(v) == 2 and min(v) > 0 for v in ways.values())


def test_series_of_a_stored_gpu_run(tmp_path):
    rows = [{"section": "verify", "vocab": v, "batch": 8, "dtype": "bfloat16", "drafts": "all accepted",
             "kernel_us": 2.0 * floor, "floor_us": floor, "dense_eager_us": 9 * floor} for v, floor in ((99, 5.0), (11, 3.0))]
    del rows[1]["dense_eager_us"]
    rows += [rows[0] | {"dtype": "float32"}, rows[0] | {"section": "other"}, rows[0] | {"drafts": "sampled"}]
    (tmp_path / "data" / "card").mkdir(parents=True)
    (tmp_path / "data" / "card" / "gpu.json").write_text(json.dumps({"name": "gpu", "rows": rows, "gpu": "G", "bars": []}))
    kernel, dense = verify_times.on_gpus(tmp_path)
    assert kernel == {"label": "kernel, card", "x": ["11 × 8", "99 × 8"], "y": [2.0, 2.0], "provenance": {"gpu": "G"}}
    assert dense["label"] == "dense, eager, card" and dense["y"] == [None, 9.0]
    assert verify_times.on_gpus(tmp_path / "card") == []


def test_loads_are_counted():
    triton = pytest.importorskip("triton")
    if not triton.knobs.runtime.interpret:
        pytest.skip("the kernel is compiled in this process")
    from spin_core.lab.lessons.l6_verify_kernel import ladder as kernel_ladder
    from spin_core.lab.lessons.l6_verify_kernel.measure import rows_read

    logits = torch.randn(3, 200)
    assert rows_read(lambda: kernel_ladder.logsumexp(logits[1:]), logits, torch.zeros(2, 5)) == [[0, 1, 1], [0, 0]]


@pytest.mark.parametrize("answer", [[1.0, 2.0], True, torch.zeros(2, 3), (torch.zeros(6), [1] * 6)])
@pytest.mark.parametrize("check", [checks.check_logsumexp, checks.check_accept, checks.check_replace,
                                   checks.check_ragged])
def test_an_answer_of_the_wrong_type_or_shape_is_told_so(check, answer):
    said = check(lambda *given: answer).message
    assert "should be a tensor of shape" in said and ("its type is" in said or "its shape is" in said) \
        or said.endswith("should return two tensors, accepted and last; it returns a bool.")


CPU = {"torch reference": [0.5, 2.0], "loop": [1.0, 900.0]}
FIGURES = {
    "reads": (lambda: verify_kernel.reads([(2, 1), (0, 0)], [[1, 2.03, 0], [1]], [[0.0005, 1.03], []]),
              ["1×", "2×", "•", "2 drafted, 1 accepted"]),
    "reads of nothing drafted": (lambda: verify_kernel.reads([(0, 0)], [[1]], [[]]), ["0 drafted, 0 accepted"]),
    "bias": (lambda: verify_kernel.bias({"good": (1e-17, 0.5), "bad": (0.25, 1.0)}), ["0.000", "0.250", "0.50", "1 of 2 are biased (red)"]),
    "times without a GPU": (lambda: verify_kernel.times(CPU, ["9 × 1", "9 × 8"], {}), ["loop", "9 × 8"]),
    "times": (lambda: verify_kernel.times(CPU, ["9 × 1", "9 × 8"], {"kernel": (["a", "b"], [1.2, None])}), ["kernel"]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_pictures(name):
    draw, expected = FIGURES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = draw()
        look.png(figure, dpi=50)
    assert figure.get_figwidth() == look.WIDTH
    said = words(figure)
    assert all(any(text in word for word in said) for text in expected), said
    assert name != "times without a GPU" or len(figure.axes) == 1, "no empty panel"


def test_the_widget_follows_its_slider(monkeypatch):
    from spin_core.lab.lessons.l6_verify_kernel import widgets as widget

    drawn = []
    monkeypatch.setattr(widget.verify_kernel, "bias", lambda found: drawn.append(found) or verify_kernel_figure())
    panel = widget.bias()
    panel.children[0].children[0].value = 0
    with_distance, same = drawn
    assert with_distance["top-k, raw q"][0] > 0.1 and same["independent, duplicates kept"][1] == pytest.approx(1)


def verify_kernel_figure():
    return plots.theory_family([0.5], [0.1])
