"""The pictures show what the plan says."""

from __future__ import annotations

import pytest
from matplotlib.patches import Rectangle
from ragged_cases import COSTS

from spin_core.decompose import STRATEGIES, plan
from spin_core.lab.lessons.l4_decomposition.plots import packing, packing_and_costs

LENGTHS, Q_LENS = [500, 60, 90, 60], [5, 5, 2, 5]


def area(ax, hatched: bool) -> float:
    return sum(p.get_width() for p in ax.patches if isinstance(p, Rectangle) and bool(p.get_hatch()) == hatched)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bars_add_up_to_what_is_touched(strategy):
    made = plan(LENGTHS, Q_LENS, strategy, costs=COSTS)
    figure = packing(made)
    queries, keys = figure.axes
    assert area(keys, False) == made.kv_true
    assert area(keys, True) == made.kv_touched - made.kv_true
    assert area(queries, False) + area(queries, True) == made.q_touched
    figure.draw_without_rendering()


def test_the_curve_marks_the_chosen_width():
    made = plan(LENGTHS, Q_LENS, "decomposed", costs=COSTS)
    line, mark, _ = packing_and_costs(made, made, made.width).axes[-1].lines
    assert len(line.get_xdata()) == len(made.considered) > 3
    assert mark.get_xdata()[0] == made.width and mark.get_ydata()[0] == pytest.approx(made.seconds * 1e6)


def test_a_request_keeps_its_colour_however_it_is_cut():
    first = [next(p.get_facecolor() for p in packing(plan(LENGTHS, Q_LENS, how, costs=COSTS)).axes[1].patches
                  if isinstance(p, Rectangle)) for how in ("padded", "decomposed")]
    assert first[0] == first[1] and "Cheapest at" in \
        packing_and_costs(*[plan(LENGTHS, Q_LENS, "decomposed", costs=COSTS)] * 2, 90).axes[-1].get_title("left")


def test_an_empty_plan_can_be_drawn():
    packing(plan([3], [0], "padded")).draw_without_rendering()
