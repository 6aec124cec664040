"""Hypotheses on the cost of a pass: what they change, what they leave, and in which order the published numbers put
them. Orderings, not digits."""

from __future__ import annotations

import numpy as np
import pytest

from spin_core.lab.bench import hypotheses as bench
from spin_core.lab.simulate import paper
from spin_core.lab.simulate.hypotheses import HYPOTHESES
from spin_core.lab.simulate.profiles import DRAFTERS, HARDWARE, TARGETS, TENSOR_PARALLEL
from spin_core.select import NONE, Outcome, RequestView, make

LENGTHS, DRAFTED = np.array([40, 120, 300, 80]), np.full(4, 4)


def costs(name: str, strategy: str = "decomposed", target: str = "LLaMA-7B", card: str = "V100-32GB"):
    return HYPOTHESES[name](TARGETS[target], DRAFTERS, HARDWARE[card], strategy=strategy,
                            devices=TENSOR_PARALLEL[target])


def test_the_first_hypothesis_is_todays_model():
    assert paper.system("LLaMA-7B").verify(LENGTHS, DRAFTED) == costs("cached").verify(LENGTHS, DRAFTED)


@pytest.mark.parametrize("name", HYPOTHESES)
def test_pieces_never_take_longer_than_padding(name):
    padded, pieces = (costs(name, s).verify(LENGTHS, DRAFTED) for s in ("padded", "decomposed"))
    assert pieces.seconds < padded.seconds and pieces.touched <= padded.touched
    assert pieces.touched >= (LENGTHS + DRAFTED).sum()
    assert HYPOTHESES[name].assumption.endswith(".")


def test_only_without_a_cache_a_verification_takes_what_was_published():
    times = {name: paper.verification_latency("Alpaca", (16,), steps=10, hypothesis=name) for name in HYPOTHESES}
    for name, ways in times.items():
        ratio = {"padded": ways["padded, gathered"][0] / paper.LATENCY["padded"],
                 "decomposed": ways["decomposed"][0] / paper.LATENCY["decomposed"]}
        near = all(.5 < r < 2 for r in ratio.values())
        assert near == name.startswith("recompute"), (name, ratio)


def test_without_a_cache_prompts_are_not_read_besides():
    for name in ("recompute", "recompute-all", "recompute, wide queries"):
        assert costs(name).verify(LENGTHS, DRAFTED, 500) == costs(name).verify(LENGTHS, DRAFTED)
    assert costs("cached").verify(LENGTHS, DRAFTED, 500).seconds > costs("cached").verify(LENGTHS, DRAFTED).seconds


def test_what_each_hypothesis_changes_of_drafting():
    def draft(name: str) -> float:
        return costs(name).draft("1.4B", 8, [8] * 4, 8 * 150.0)

    assert draft("cached") == draft("recompute") < draft("eager") < draft("recompute-all")
    assert draft("cached") < draft("fp32")
    assert costs("recompute-all").reading("1.4B", 100, 8) == 0 < costs("recompute").reading("1.4B", 200, 8)


def test_wide_queries_are_more_work():
    one, wide = (costs(name).verify(LENGTHS, DRAFTED).seconds for name in ("recompute", "recompute, wide queries"))
    assert one < wide < costs("recompute", "padded").verify(LENGTHS, DRAFTED).seconds


def test_memory_without_a_cache_is_rows_not_keys():
    """A batch that a cache cannot hold fits; and a padded one needs more than one in pieces."""
    lengths = [200] * 64
    assert costs("recompute").memory(lengths) < costs("cached").memory(lengths)
    skewed = [40] * 31 + [600]
    assert costs("recompute", "padded").memory(skewed) > costs("recompute").memory(skewed)
    assert costs("recompute", "padded", card="V100-16GB").memory(skewed) > 16e9


def test_which_targets_fit_the_papers_cards():
    for target in TARGETS:
        assert costs("recompute", target=target).kv_room > 0
    with pytest.raises(ValueError, match="LLaMA-30B does not fit on 4"):
        costs("fp32", target="LLaMA-30B")
    with pytest.raises(ValueError, match="does not fit"):
        costs("recompute", target="LLaMA-30B", card="V100-16GB")


def test_spin_gains_twice_as_much_without_a_cache():
    over = {name: np.mean([paper.climbed(data, "LLaMA-7B", hypothesis=name, requests=32)
                           / paper.averaged(1, paper.rung, "vanilla", data, "LLaMA-7B", hypothesis=name, requests=32)
                           for data in ("Alpaca", "CP")]) for name in ("cached", "recompute-all", "recompute")}
    assert 1 < over["cached"] < 1.4 < over["recompute-all"] < over["recompute"] < 2.6


def test_micro_batches_of_similar_length_have_less_padding():
    how = dict(strategy="padded", micro_batches=4, batch=16, requests=64, hypothesis="recompute")
    arrival, length = (paper.serve("Alpaca", "LLaMA-7B", "68M", by_length=by, **how) for by in (False, True))
    assert length.padding < .8 * arrival.padding and length.goodput > arrival.goodput
    assert length.tokens == arrival.tokens


def test_recorded_drafts_take_their_share_of_the_papers_target():
    drafters = paper.pool(paper.RECORDED)
    assert [m.layers for m in drafters.values()] == sorted(m.layers for m in drafters.values())
    assert all(1 <= m.layers < 10 for m in drafters.values())
    run = paper.rung("+ selection", paper.RECORDED, "LLaMA-7B", requests=12)
    assert set(run.served) <= {*drafters, NONE} and run.goodput > 0


# ---- selection for drafters on devices of their own

def taught(tokens: dict[str, int], seconds: dict[str, float], step: float = 0.02):
    """A selector that has seen 400 steps with each drafter."""
    selector = make("spin", list(tokens), gamma=4, explore=0, own_devices=True)
    for request in range(400):
        for arm, count in {**tokens, NONE: 1}.items():
            drafted = 4 * (arm != NONE)
            selector.observe([Outcome(request, arm, drafted, count - 1, count, seconds.get(arm, 0.0), step, 1 + drafted,
                                      step, step)])
        selector.finish(request)
    return selector


@pytest.mark.parametrize("slow, chosen", [(0.001, "large"), (0.02, "small")])
def test_the_batch_weighs_tokens_against_the_slowest_drafter(slow, chosen):
    selector = taught({"small": 2, "large": 3}, {"small": 0.001, "large": slow})
    choices = selector.assign([RequestView(1000 + r, 0, 40, 60) for r in range(8)])
    assert {c.drafter for c in choices.values()} == {chosen}


def test_one_request_does_not_make_all_others_wait():
    """It gains a token from the slow drafter, the batch loses more; with enough such requests the step pays."""
    selector = taught({"small": 2, "large": 2}, {"small": 0.001, "large": 0.012})
    views = [RequestView(1000 + r, 0, 40, 60) for r in range(8)]
    for request in range(1000, 1007):
        for _ in range(60):
            selector.observe([Outcome(request, "large", 4, 4, 5, 0.012, 0.02, 5, 0.02, 0.02)])
        drafters = [c.drafter for c in selector.assign(views).values()]
        if request == 1000:
            assert "large" not in drafters
    assert drafters.count("large") >= 7


def test_selection_keeps_up_with_the_best_fixed_drafter():
    for hypothesis in ("cached", "recompute"):
        how = dict(requests=100, hypothesis=hypothesis, strategy="padded")
        fixed = max(paper.averaged(2, paper.serve, "CP", "LLaMA-7B", arm, **how) for arm in ("68M", "265M", "1.4B"))
        spin, alone = (paper.averaged(2, paper.serve, "CP", "LLaMA-7B", "spin", own_devices=own, **how)
                       for own in (True, False))
        assert spin > .98 * fixed and spin > alone


# ---- the table

@pytest.fixture
def report() -> dict:
    return bench.stored() or pytest.skip("bench hypotheses has not stored its table")


def test_the_stored_table_puts_the_hypotheses_in_order(report):
    scores = {name: row["score"] for name, row in bench.scores(report).items()}
    assert set(scores) == set(HYPOTHESES)
    without = [scores[name] for name in scores if name.startswith("recompute")]
    assert max(without) < min(score for name, score in scores.items() if not name.startswith("recompute"))
    assert max(without) < .5 * scores["cached"]
    for row in report["rows"]:
        if "lengths" in row and row["hypothesis"] == "cached":
            moved = [r["score"] for r in report["rows"] if r.get("lengths") == row["lengths"] and r is not row]
            assert max(moved) < row["score"], "with other lengths the order is the same"
    assert report["commit"] and any("kind: modelled" in note for note in report["notes"])


def test_the_table_has_every_number(report):
    table = bench.table(report)
    assert all(set(table[quantity]) == set(HYPOTHESES) for quantity in bench.PUBLISHED)
    cells = [row for found in table.values() for row in found.values()]
    assert any(row["modelled"] is None for row in cells), "a hypothesis that cannot run a setting says so"
    assert 0 < sum(map(bench.is_close, cells)) < len(cells)
    for name, judged in bench.scores(report).items():
        assert sum(bench.is_close(table[quantity][name]) for quantity in bench.PUBLISHED) == judged["within"]


def test_a_score_is_the_mean_log_ratio():
    perfect = dict(bench.PUBLISHED) | bench.SHOWN
    assert bench.score(perfect) == {"score": 0.0, "within": len(bench.PUBLISHED), "of": len(bench.PUBLISHED)}
    twice = {name: None if name == "lost to padding" else 2 * value for name, value in perfect.items()}
    assert bench.score(twice)["score"] == pytest.approx(np.log(2)) and bench.score(twice)["within"] == 0
