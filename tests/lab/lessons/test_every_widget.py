"""What all widgets of all lessons have in common: a first picture that is also stored, controls that explain
themselves, axes that hold still, and complaints in words."""

from __future__ import annotations

import ast
import io
import re
from base64 import b64decode
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
import tiny
from ipywidgets import HTML, Button, Checkbox, Text, ValueWidget
from PIL import Image
from test_decomposition_lesson import PRICES
from test_pages import numbers
from test_plots import ACCEPTING, REJECTING

from spin_core.engine import Engine
from spin_core.lab import lessons
from spin_core.lab.lessons import look, pages, race
from spin_core.lab.lessons.l1_speculation import widgets as speculation
from spin_core.lab.lessons.l2_drafters import widgets as drafters
from spin_core.lab.lessons.l3_selection import measure as lesson3, stepper, widgets as selection
from spin_core.lab.lessons.l4_decomposition import widgets as decomposition
from spin_core.lab.lessons.l5_pipeline import widgets as pipeline
from spin_core.lab.lessons.l6_verify_kernel import rules, widgets as verify_kernel
from spin_core.lab.lessons.l6_verify_kernel.plots import bias
from spin_core.lab.lessons.l7_paper_figures import live, widgets as paper_figures
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
DRAWINGS = {"l5.replay", "l8.editor"}
"""Pictures without scales, or whose control says how much an axis shows."""


@pytest.fixture(scope="module", params=WIDGETS)
def widget(request) -> tuple[str, Panel]:
    return request.param, WIDGETS[request.param]()


def test_the_list_has_every_widget():
    """Every public function of a lesson's ``widgets.py`` that is said to return a panel."""
    known, there = {name.partition(".")[2] for name in WIDGETS}, set()
    for path in Path(lessons.__file__).parent.glob("l*/widgets.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            returns = ast.unparse(node.returns) if isinstance(node, ast.FunctionDef) and node.returns else ""
            if returns == "Panel":
                there.add(node.name)
    assert there == known


def test_the_stored_picture_is_the_first_one(widget):
    """A viewer without widgets shows the picture with which the widget opens; the lesson's own figure is the same."""
    name, panel = widget
    stored = panel._repr_mimebundle_()
    assert b64decode(stored["image/png"]) == panel.picture.value
    assert stored["text/plain"] == "[a widget: run this notebook to use it]"
    if name in STATIC:
        assert look.png(STATIC[name]()) == panel.picture.value


def unexplained(controls) -> list[str]:
    return [c.description for c in controls if isinstance(c, (Button, ValueWidget)) and not isinstance(c, HTML)
            and not (c.description and c.tooltip)]


def test_every_control_says_what_it_is(widget):
    _, panel = widget
    controls = panel.children[0].children
    assert controls and unexplained(controls) == []


def ends(control) -> list:
    """Two far values of a control."""
    if isinstance(control, Checkbox):
        return [True, False]
    options = [value for _, value in control._options_full] if hasattr(control, "options") else [control.min, control.max]
    return [options[0], options[-1]]


def test_axes_hold_still_while_a_control_moves(widget, monkeypatch):
    """Once all values have been seen no axis moves any more, whichever of them is shown."""
    name, panel = widget
    if not panel.hold:
        assert name in DRAWINGS
        return
    shown, steady = [], panel._steady

    def watch(figure):
        shown.append([(*axes.get_xlim(), *axes.get_ylim()) for axes in steady(figure).axes])
        return figure

    monkeypatch.setattr(panel, "_steady", watch)
    monkeypatch.setattr(look, "png", lambda figure: b"")            # drawing takes most of the time
    control = next(c for c in panel.controls if not isinstance(c, Checkbox))
    picture = panel.picture.value
    for control.value in ends(control):
        pass
    known = shown[-1]
    for control.value in ends(control):
        assert shown[-1] == known, f"{control.description} moves an axis"
    panel.picture.value = picture


def test_a_value_that_cannot_be_drawn_is_refused_in_words_and_the_picture_stays():
    panel = WIDGETS["l8.editor"]()
    before, (shape,) = panel.picture.value, [c for c in panel.controls if isinstance(c, Text)]
    for wrong, said in (("2,x", "2,x"), ("0", "0"), ("9,9,9", "")):
        shape.value = wrong
        assert said in panel.sign.value and "<span" in panel.sign.value and "Error" not in panel.sign.value
        assert panel.picture.value == before
    shape.value = "1,1"
    assert "<span" not in panel.sign.value and panel.picture.value != before


# ---- pages and the live dashboard, which are no panels

def stored_picture(display, name: str) -> tuple[bytes, HTML]:
    """What a lesson stores of a page: the picture for viewers without scripts, and the page."""
    shown = []
    display.setattr(pages, "display", shown.append)
    display.setattr(race, "FRAMES", 3)         # the middle one has all colours
    {"race": lambda: race.show(race.THREE), "selection": lambda: stepper.show(STEPPED)}[name]()
    picture, page = shown
    assert picture.alt.startswith(f"{name}:")
    return picture.data, page


STEPPED = stepper.replayed(lesson3.shifting(12, shift=False), {"reads": 4, "copies": 4}, ["spin", "greedy"], batch=4,
                           steps=20)


def test_the_pages_open_as_their_stored_pictures_end(monkeypatch):
    picture, page = stored_picture(monkeypatch, "race")
    data, moving = numbers(page), Image.open(io.BytesIO(picture))
    assert data["prompt"] and race.finding(data["lanes"]) == data["title"]      # the page opens at the start
    moving.seek(moving.n_frames - 1)
    end = Image.open(io.BytesIO(look.png(race.picture(data["lanes"], prompt=data["prompt"]), dpi=72))).convert("RGB")
    difference = np.abs(np.asarray(moving.convert("RGB"), int) - np.asarray(end, int)).mean()
    assert moving.size == end.size and difference < 3               # of 255: the film has fewer colours
    picture, page = stored_picture(monkeypatch, "selection")
    data = numbers(page)
    assert picture == look.png(stepper.picture(STEPPED, "spin", data["at"]), whole=True)


def test_every_control_of_a_page_says_what_it_is():
    """Buttons and sliders have a title; so has a menu by ``choice``."""
    for script in sorted(pages.FILES.glob("*.js")):
        text = script.read_text("utf-8")
        for tag in ("button", "input", "select"):
            for made in re.findall(rf'make\("{tag}", \{{(.*?)\}}', text, re.S):
                assert "title" in made, f"{script.name}: {tag} {made[:60]}"


def test_the_live_dashboard_explains_itself_and_is_stored_as_it_opens(monkeypatch):
    monkeypatch.setattr(live, "load_workload", lambda *_: [SimpleNamespace(messages=[i, 4], workload="w") for i in range(4)])
    server = live.Server(tiny.family(), at_once=2, tokens=6)
    for _ in range(4):
        server.turn()
    panel = live.dashboard(server)
    assert unexplained([*panel.controls.values(), panel.work.start, panel.work.stop]) == []
    assert panel._repr_mimebundle_()["text/html"] == panel.view.value == live.render(server)
    assert f"{server.numbers()['goodput']:,.1f} tokens/s" in live.picture(server).get_suptitle()
    server.close()
