"""What is drawn: the right numbers and words, in every corner a lesson may reach, without a global trace."""

from __future__ import annotations

import io
import warnings

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from spin_core.lab.lessons.l1_speculation import plots
from spin_core.lab.lessons import look
from spin_core.lab.lessons.l1_speculation.steps import FATES, Place, Step

matplotlib.use("Agg")


def place(drafted: int | None, emitted: int | None, u: float | None = None) -> Place:
    p = [0.5, 0.2, 0.1, 0.2]
    q = [0.1, 0.6, 0.1, 0.2] if drafted is not None else []
    residual = [max(0.0, a - b) for a, b in zip(p, q or [0.0] * 4)]
    return Place([" the", "\n", " $x_", "all others"], p, q, residual, drafted, emitted, u)


REJECTING = Step("It was", [" the", "\n", " $x_"], ["accepted", "rejected", "unseen"], " the", "replacement",
                 [place(0, 0, 0.3), place(1, 0, 0.9), place(2, None), place(None, None)])
ACCEPTING = Step("It was the", [" the", "\n"], ["accepted"] * 2, " $x_", "bonus",
                 [place(0, 0, 0.3), place(1, 1, 0.1), place(None, 2)])
CUT = Step("It", [" the", "\n"], ["accepted", "unseen"], None, None,
           [place(0, 0, 0.3), place(1, None), place(None, None)])
PLAIN = Step("", [], [], " the", "bonus", [place(None, 0)])

COUNTS = ([40, 20, 0], [20, 15, 0])
FIGURES = {
    "text_by_fate": lambda: plots.text_by_fate(["Hi", " there", ",\n", "\n\n", "$a$"],
                                               ["accepted"] * 4 + ["bonus"], title="t"),
    "text of one word longer than a line": lambda: plots.text_by_fate(["x" * 300], ["replacement"]),
    "text of nothing": lambda: plots.text_by_fate([], []),
    "steps": lambda: plots.steps([REJECTING, ACCEPTING, CUT, PLAIN], title="t"),
    "outcomes": lambda: plots.outcomes(["a", "b"], [0.7, 0.3], {"one, two": [0.6, 0.4], "b": [0.1, 0.9]}, count=10,
                                       distances={"one, two": 0.1, "b": 0.6}, noise=0.2),
    "expected_tokens": lambda: plots.expected_tokens([1.4, 1.7, 1.9], [0.1] * 3, COUNTS, {1: 1.5, 3: 2}),
    "acceptance_by_position": lambda: plots.acceptance_by_position({"a": COUNTS, "none": ([0] * 3, [0] * 3)}),
    "acceptance_by_request": lambda: plots.acceptance_by_request({"a": [1, 2, 3], "b": [3, 2, 1]},
                                                                 ["w", "w", "v"]),
    "speed": lambda: plots.speed({"d": ([1, 1.2, 1.1], [0, .1, .1])}, ("theory", [1, 1.3, 1.4]), {"d": {1: 1.1, 2: 1.3}},
                                 {"drafting": [0, 1, 2], "target": [90, 95, 99]}, 9),
    "theory_family": lambda: plots.theory_family([0.5, 0.9], [0.05, 0.6]),
}


def words(figure: Figure) -> str:
    return "\n".join(t.get_text() for t in figure.findobj(matplotlib.text.Text))


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_renders_without_a_warning_and_leaves_no_trace(name):
    before = dict(matplotlib.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = FIGURES[name]()
        image = imread(io.BytesIO(look.png(figure, dpi=60)))
    assert isinstance(figure, Figure)
    assert image.shape[1] == pytest.approx(look.WIDTH * 60, abs=1), "every figure is one column wide"
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in vars(plots)


@pytest.mark.parametrize("step", [REJECTING, ACCEPTING, CUT, PLAIN])
def test_every_place_of_a_step_renders(step):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pictures = [look.png(plots.step(step, j), dpi=60) for j in range(len(step.places))]
    assert len(set(pictures)) == len(pictures), "places look different"


def test_a_step_shows_the_distributions_of_its_place_and_says_what_happened():
    figure = plots.step(REJECTING, 1, title="Step 1 of 9")
    text = words(figure)
    assert "Step 1 of 9" in text
    assert "u·q = 0.900·0.600 = 0.540 ≥ p: rejected; ␣the is drawn from (p − q)₊" in text
    here, ax = REJECTING.places[1], figure.axes[1]
    shared, residual, excess, others = ([bar.get_height() for bar in bars] for bars in ax.containers)
    assert residual == here.residual[:-1]
    assert [a + b for a, b in zip(shared, residual)] == pytest.approx(here.p[:-1])
    assert [a + b for a, b in zip(shared, excess)] == pytest.approx(here.q[:-1])
    assert others == [max(here.p[-1], here.q[-1])]
    point, = ax.lines
    assert point.get_xydata().tolist() == [[here.drafted, pytest.approx(here.u * here.q[here.drafted])]]
    assert "< p: accepted." in words(plots.step(REJECTING, 0))
    assert "was drafted but not tested: the draft ended" in words(plots.step(REJECTING, 2))
    assert "not reached" in words(plots.step(REJECTING, 3))
    assert "the target adds ␣$x_ from p." in words(plots.step(ACCEPTING, 2))
    assert "nothing was drafted, so the target draws ␣the from p" in words(plots.step(PLAIN, 0))
    with pytest.raises(ValueError, match="were the distributions recorded"):
        plots.step(Step("", ["a"], ["accepted"], "b", "bonus"), 0)


def test_fates_differ_by_more_than_colour():
    """Struck out, dotted, bold: readable in grey."""
    def looks(fate: str):
        drafted = fate in ("accepted", "rejected", "unseen")
        figure = plots.steps([Step("", ["x"], [fate]) if drafted else Step("", [], [], "x", fate)])
        ax = figure.axes[0]
        box, text = ax.patches[-1], [t for t in ax.texts if t.get_text() == "x"][0]
        return len(ax.lines), box.get_linestyle(), text.get_weight()

    seen = {fate: looks(fate) for fate in FATES}
    assert len({seen[f] for f in ("accepted", "rejected", "unseen", "bonus")}) == 4
    assert set(plots.FATE_COLOURS) == set(plots.FATE_WORDS) == set(FATES)


def test_boxes_of_a_crowded_step_stay_inside_the_figure():
    long = Step("It was", ["extraordinarily"] * 8, ["accepted"] * 8, "unbelievable", "bonus")
    ax = plots.steps([long]).axes[0]
    assert max(patch.get_x() + patch.get_width() for patch in ax.patches) <= ax.get_xlim()[1]


def test_label_shows_what_cannot_be_seen():
    assert look.label(" a\n\t") == "␣a↵⇥"
    assert look.label("") == "∅"
    assert look.label("\U0001F600") == "□"
    assert look.label("x" * 20) == "x" * 13 + "…"


def test_a_text_and_its_fates_must_fit():
    with pytest.raises(ValueError, match="2 tokens but 1 fates"):
        plots.text_by_fate(["a", "b"], ["accepted"])


def test_text_by_fate_keeps_every_word_and_breaks_lines_between_words():
    tokens = [w if i == 0 else " " + w for i, w in enumerate(["alpha", "be", "gamma"] * 30)]
    tokens[10:11] = [" un", "breakable"]
    ax = plots.text_by_fate(tokens, ["accepted"] * len(tokens)).axes[0]
    shown = [t for t in ax.texts if t.get_family() == ["DejaVu Sans Mono"] and t.get_text() != "a"]
    assert [t.get_text().strip() for t in shown] == [t.strip() for t in tokens]
    line_starts = [t for t in shown if t.get_position()[0] == min(s.get_position()[0] for s in shown)]
    assert len(line_starts) > 3 and not any(t.get_text().startswith(" ") for t in line_starts)
    un, breakable = (next(t for t in shown if t.get_text().strip() == s) for s in ("un", "breakable"))
    assert un.get_position()[1] == breakable.get_position()[1]
    assert breakable.get_position()[0] == pytest.approx(un.get_position()[0] + len(un.get_text()))
    assert max(t.get_position()[0] + len(t.get_text()) for t in shown) <= ax.get_xlim()[1]


def test_expected_tokens_draws_formula_and_measurement():
    figure = plots.expected_tokens([1.4, 1.7, 1.9], [0.1] * 3, COUNTS, {1: 1.5})
    one, each = (line.get_ydata() for line in figure.axes[0].lines[:2])
    alpha = 35 / 60
    np.testing.assert_allclose(one, [sum(alpha**j for j in range(g + 1)) for g in range(4)])
    np.testing.assert_allclose(each, [1, 1.5, 1.875, 1.875])


def test_acceptance_by_request_counts_who_is_best():
    text = words(plots.acceptance_by_request({"a": [1, 2, 3], "b": [3, 1, 1]}, ["w", "w", "v"]))
    assert "w\na best for 50%,\nb for 50%" in text and "v\na best for 100%,\nb for 0%" in text
    assert "2 requests" in text and "sorted by the tokens of its best drafter" in text


def test_a_share_of_few_tests_of_the_own_run_is_not_drawn():
    figure = plots.acceptance_by_position({"a": COUNTS}, here={"a": ([20, 19, 0], [10, 19, 0])})
    hollow, = (line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white")
    assert hollow.get_ydata().tolist() == [0.5]


def test_theory_marks_the_best_gamma():
    assert "best γ = 8: 3.09×" in words(plots.theory(0.8, 0.05))
    assert "do not speculate" in words(plots.theory(0.1, 0.3))
    assert look.png(plots.theory(0.0, 0.0)) and look.png(plots.theory(1.0, 0.5))


def test_labels_at_line_ends_keep_their_distance():
    moved = look.apart([1.0, 0.9, 3.0, 1.05], 0.2)
    assert moved == pytest.approx([1.1, 0.9, 3.0, 1.3])


def text_overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of visible texts whose boxes intersect."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    off_scale = set()               # labels of ticks outside the axes exist, but are not drawn
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            off_scale |= {t.label1 for t in axis.get_major_ticks() if not low <= t.get_loc() <= high}
    texts = [t for t in figure.findobj(matplotlib.text.Text)
             if t.get_text().strip() and t.get_visible() and t not in off_scale]
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in texts]
    # slanted tick labels have boxes much larger than themselves
    boxes = [(s, b.padded(-1.5)) for (s, b), t in zip(boxes, texts) if t.get_rotation() % 90 == 0]
    return [(a, c) for i, (a, b) in enumerate(boxes) for c, d in boxes[i + 1:] if b.overlaps(d)]


@pytest.mark.parametrize("make", [*FIGURES.values(), lambda: plots.step(REJECTING, 1, title="Step 1 of 9"),
                                  lambda: plots.theory(0.8, 0.05), lambda: plots.theory(0.2, 0.3),
                                  lambda: plots.theory(0.99, 0.0)])
def test_no_text_lies_on_another(make):
    with look.style():
        assert text_overlaps(make()) == []


def test_speed_names_the_best_drafter_and_gamma():
    phases = {"drafting": [0, 6], "target": [90, 94]}
    figure = plots.speed({"quick": ([1, 1.2, 1.1], [0, .1, .1]), "other": ([1, 1.1, 1.3], [0, .1, .1])},
                         ("theory", [1, 1.1, 1.2]),
                         {"quick": {1: 1.2}, "other": {1: 1.2}}, phases, 432)
    for said in ("quick: at best 1.20 times plain decoding, at γ = 1", "quick, this run: drafting takes\n6% of a step at γ = 1",
                 "432 recorded answers"):
        assert said in words(figure)
    figure = plots.speed({"slow": ([1, .9], [0, .1])}, ("theory", [1, .95]), {"slow": {1: .9}}, phases, 432)
    assert "slow never beats plain decoding" in words(figure)


def test_the_smaller_png_keeps_every_colour():
    figure = plots.step(REJECTING, 1, title="Step 1 of 9")
    full = io.BytesIO()
    with look.style():
        figure.savefig(full, format="png", dpi=100)
    full.seek(0)
    small = look.png(figure, dpi=100)
    assert len(small) < 0.6 * len(full.getvalue())
    difference = np.abs(imread(io.BytesIO(small))[..., :3] - imread(full)[..., :3])
    assert difference.max() < 20 / 255
