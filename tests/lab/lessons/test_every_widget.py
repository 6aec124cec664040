"""What all widgets of all lessons have in common: a first picture that is also stored, and controls that explain themselves."""

from __future__ import annotations

import ast
from base64 import b64decode
from pathlib import Path

import matplotlib
import pytest
import tiny
from ipywidgets import Button, ValueWidget
from test_decomposition_lesson import PRICES
from test_plots import ACCEPTING, REJECTING

from spin_core.engine import Engine
from spin_core.lab import lessons
from spin_core.lab.lessons import look
from spin_core.lab.lessons.l1_speculation import widgets as speculation
from spin_core.lab.lessons.l2_drafters import widgets as drafters
from spin_core.lab.lessons.l3_selection import widgets as selection
from spin_core.lab.lessons.l4_decomposition import widgets as decomposition
from spin_core.lab.lessons.l5_pipeline import widgets as pipeline
from spin_core.lab.lessons.l6_verify_kernel import rules, widgets as verify_kernel
from spin_core.lab.lessons.l6_verify_kernel.plots import bias
from spin_core.lab.lessons.l7_paper_figures import widgets as paper_figures
from spin_core.lab.lessons.l8_token_trees import widgets as token_trees
from spin_core.lab.lessons.l9_long_context import measure, plots, widgets as long_context
from spin_core.lab.lessons.panel import Panel
from spin_core.request import SamplingParams

matplotlib.use("Agg")


def served() -> Engine:
    engine = Engine(tiny.family(), "near", 3, pipeline=2)
    engine.generate([[i, 4, i] for i in range(4)], SamplingParams(max_new_tokens=24, stop_ids=()))
    return engine


WIDGETS = {
    "l1.stepper": lambda: speculation.stepper([REJECTING, ACCEPTING]),
    "l1.theory": speculation.theory,
    "l1.acceptance": lambda: speculation.acceptance({"chat": {"a": ([4, 2], [2, 1])}, "mix": {"a": ([6, 3], [3, 3])}}),
    "l2.pick": lambda: drafters.pick([("one", {"a": 1.2, "b": 0.9}), ("two", {"a": 0.8, "b": 1.1})]),
    "l3.replayed": lambda: selection.replayed(16),
    "l4.packing": lambda: decomposition.packing(PRICES),
    "l5.overlap": pipeline.overlap,
    "l5.replay": lambda: pipeline.replay(served()),
    "l6.bias": verify_kernel.bias,
    "l7.ladders": lambda: paper_figures.ladders(requests=16),
    "l7.dashboard": paper_figures.dashboard,
    "l8.editor": lambda: token_trees.editor(Engine(tiny.family(), "none", max_batch=1, max_len=60), {"one": "abcab"},
                                            [("near", "subset")], 8),
    "l8.stepper": token_trees.stepper,
    "l9.model": long_context.model,
    "l9.our_family": long_context.our_family,
}
STATIC = {"l6.bias": lambda: bias({n: rules.measure(r) for n, r in {**rules.LOSSLESS, **rules.BIASED}.items()}),
          "l9.our_family": lambda: plots.our_family(measure.our_family()[0], measure.LIVE_BATCH, 2)}
"""Figures of a lesson that a widget opens with."""


@pytest.fixture(scope="module", params=WIDGETS)
def widget(request) -> tuple[str, Panel]:
    return request.param, WIDGETS[request.param]()


def test_the_list_has_every_widget():
    """Every public function of a lesson's ``widgets.py`` that is said to return a panel."""
    known, there = {name.partition(".")[2] for name in WIDGETS}, set()
    for path in Path(lessons.__file__).parent.glob("l*/widgets.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.returns is not None and ast.unparse(node.returns) in ("Panel", "Story"):
                there.add(node.name)
    assert there == known


def test_the_stored_picture_is_the_first_one(widget):
    """A viewer without widgets shows the picture with which the widget opens, and the lesson's own figure is the same."""
    name, panel = widget
    stored = panel._repr_mimebundle_()
    assert b64decode(stored["image/png"]) == panel.picture.value and stored["text/plain"].startswith("[a widget")
    if name in STATIC:
        assert look.png(STATIC[name]()) == panel.picture.value


def test_every_control_says_what_it_is(widget):
    _, panel = widget
    controls = [c for c in panel.children[0].children if isinstance(c, (Button, ValueWidget))]
    controls = [c for c in controls if c.description or isinstance(c, Button)]
    assert controls and [c.description for c in controls if not c.tooltip] == []
