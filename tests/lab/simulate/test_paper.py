"""The paper's setting, modelled: the ladder's rungs do what they say, and the published numbers are not what
comes out."""

from __future__ import annotations

import json

import numpy as np
import pytest

from spin_core.lab.bench import names
from spin_core.lab.lessons.l7_paper_figures import checks, measure as lesson, plots, widgets
from spin_core.lab.simulate import arrivals, paper
from spin_core.lab.lessons.l7_paper_figures.widgets import picture

FEW = 16


@pytest.fixture(scope="module")
def rungs():
    return {name: paper.rung(name, "CP", "LLaMA-7B", requests=FEW) for name in paper.RUNGS}


def test_every_rung_serves_the_same_texts(rungs):
    assert len({run.tokens for run in rungs.values()}) == 1
    assert list(rungs["vanilla"].served) == [paper.VANILLA]
    assert len(rungs["+ selection"].served) > 3
    assert rungs["+ decomposition"].padding < rungs["+ selection"].padding
    assert rungs["+ pipeline"].decisions and not rungs["+ decomposition"].decisions


def test_the_published_latency_is_not_that_of_a_v100():
    """529 and 335 ms at batch 16; the model has 26 and 21, the floor is 15. We do not tune the gap away."""
    got = paper.verification_latency("Alpaca", (16,))
    assert 0.015 < got["decomposed"][0] < got["padded, in place"][0] < got["padded, gathered"][0] < 0.035
    assert paper.LATENCY["padded"] > 10 * got["padded, gathered"][0]


def test_padded_memory_runs_out_first():
    held = paper.verification_memory("Alpaca", (4, 32, 64, 96))
    padded, pieces = np.array(held["padded"]), np.array(held["decomposed"])
    assert (padded > pieces).all() and padded[-1] > held["card"][0] > pieces[-1]


def test_micro_batches_pay_where_drafting_is_worth_hiding():
    gain = {policy: paper.micro_batch_gains("Alpaca", (2,), policy=policy, batch=32, requests=64)[2]
            for policy in ("68M", "1.4B")}
    assert gain["1.4B"] > 1.05 > gain["68M"]


def test_most_of_a_cached_pass_is_fixed():
    assert 0.9 < paper.stages("Alpaca", "1.4B", requests=FEW)["verify fixed"] <= 1


def test_the_heuristic_is_compared_with_hindsight():
    case = paper.heuristic_case("Alpaca", "68M", 8, (1, 2), requests=FEW)
    assert case["best"] == case["chosen"] == 1 and case["right"] == 1 and 0.5 < case["share"] <= 1


def test_where_micro_batches_pay_the_heuristic_finds_them_in_time():
    """On the model's clock, under a load that changes all the time: requests come, read prompts and go."""
    case = paper.heuristic_case("Alpaca", "1.4B", 32, (1, 2))
    assert case["best"] == case["chosen"] == 2 and case["share"] > 0.95


def test_figures_are_drawn_from_numbers():
    systems = dict(zip(plots.SYSTEMS, (1.0, 2.0, 3.0)))
    overall = plots.overall_goodput({"7B": {"A": systems, "B": systems}}, 2.28)
    assert [t.get_text() for t in overall.axes[0].texts] == ["3.00×", "3.00×"]
    ladder = plots.ablation({"CP": {"+ x": 1.1}}, {"+ x": 1.5}, "CP", {"ours": 0.02}, {"theirs": 0.5})
    assert [t.get_text() for t in ladder.axes[1].texts] == ["20 ms", "500 ms"]
    gains = plots.microbatches({"a": {1: 1, 2: 1.8}}, {4: 1.29}, {"CP": 3})
    assert gains.axes[0].get_ylim()[1] > 1.8
    case = {"name": "n", "best": 2, "chosen": 1, "share": 0.8}
    assert [t.get_text() for t in plots.microbatch_heuristic([case]).axes[0].texts] == ["0.80"]


@pytest.mark.parametrize("policy, groups", [("spin", 2), ("none", 1), ("68M", 8)])
def test_the_dashboard_draws_any_setting(policy, groups):
    figure = picture("CP", policy, "padded", "H100-80GB", 4, groups, requests=6)
    assert "tokens/s over 6 requests (modelled: LLaMA-7B, H100-80GB)" in figure.get_suptitle()
    assert "arrival" not in figure.get_suptitle()


def test_the_dashboard_lets_requests_come_one_by_one_or_in_bursts():
    titles = {kind: picture("CP", "68M", "padded", "H100-80GB", 4, 1, kind, 1.0, requests=8).get_suptitle()
              for kind in arrivals.KINDS}
    assert len(set(titles.values())) == 3
    assert all(("s of arrival" in " ".join(title.split())) == (kind != "closed") for kind, title in titles.items())


def test_the_ladder_of_a_hypothesis_is_drawn_beside_the_published_one():
    figure = widgets.ladder_picture("recompute", "V100-32GB", 4, "CP", requests=6)
    assert "LLaMA-7B on V100-32GB, batch 4, CP: all parts bring" in figure.axes[0].get_title(loc="left")
    assert "keeps no cache" in figure.axes[0].get_title(loc="left")
    assert [text.get_text() for text in figure.axes[0].texts][:3] == ["1.45", "1.81", "1.99"]
    picture = widgets.ladder_picture("fp32", "V100-16GB", 4, "CP", requests=6)
    assert "does not fit" in picture.axes[0].get_title(loc="left")


def test_hypotheses_are_drawn_beside_what_is_published():
    table = {"a": {"x": {"ratio": 2.0, "scored": True, "published": 3}},
             "b": {"x": {"ratio": None, "scored": True, "published": 1}},
             "c": {"x": {"ratio": 1.0, "scored": False, "published": 1}}}
    panel = plots.verdict(table, ["x"]).axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["a: 3", "b: 1"]
    seconds = {name: {way: {8: .1, 16: .2} for way in paper.LATENCY} for name in "pqrs"}
    titles = [ax.get_title(loc="left") for ax in plots.verifications(seconds, paper.LATENCY, 16).axes][:4]
    assert [title.split(":")[0] for title in titles] == list("pqrs")


def test_what_remains_with_a_cache_is_compared_with_two_rivals():
    systems = lesson.systems("cached", "LLaMA-7B", "CP", requests=FEW)
    assert systems["SPIN"] > 0 and systems["best fixed drafter"] >= systems["vanilla"]


def test_arrivals_by_name():
    assert arrivals.times("closed", 9, 1.0) is None
    one, burst = (arrivals.times(kind, 2000, 4.0, seed=1) for kind in ("poisson", "bursty"))
    for times in (one, burst):
        assert len(times) == 2000 and 2000 / times[-1] == pytest.approx(4.0, rel=0.15)
    assert (np.diff(one) > 0).all() and (np.diff(burst) == 0).mean() == pytest.approx(1 - 1 / arrivals.BURST, abs=0.03)
    for wrong in (("often", 9, 1.0), ("poisson", 9, 0.0), ("poisson", 9, float("nan"))):
        with pytest.raises(ValueError, match="finite rate above 0"):
            arrivals.times(*wrong)


def test_exercises():
    assert checks.check_floor(lambda n, size, bandwidth: n * size / bandwidth).status == "right"
    assert checks.check_floor(lambda n, size, bandwidth: n / bandwidth).status == "wrong"
    assert checks.check_floor(lambda *_: None).status == "open"
    assert checks.check_floor(lambda n: n).status == "wrong"
    assert checks.check_ridge(lambda arithmetic, stream, size: arithmetic * size / 2 / stream).status == "right"
    assert checks.check_ridge(lambda arithmetic, stream, size: arithmetic / stream).status == "wrong"


def test_the_bounds_are_what_perfect_parts_would_bring():
    bounds = lesson.bounds("CP", FEW)
    parts = [bounds[part] for part in ("selection", "decomposition", "pipeline")]
    assert np.prod(parts) < bounds["together"] < 3
    # no drafter for all reaches that, even verified without padding and hidden; the best comes close
    recording = paper.texts("CP", FEW)
    stages = {arm: paper.stages("CP", arm, requests=FEW) for arm in recording.arms}
    passes = recording.lengths / (np.add.reduceat(np.minimum(recording.accepted, paper.GAMMA) + 1.0,
                                                  recording.starts[:-1], axis=1) / recording.lengths)
    vanilla = stages[paper.VANILLA]["draft"] + stages[paper.VANILLA]["verify"]
    seconds = passes[recording.arms.index(paper.VANILLA)].sum() * vanilla * bounds["decomposition"]
    alone = [seconds / (steps.sum() * max(s["draft"], s["verify"])) for steps, s in zip(passes, stages.values())]
    assert .7 * bounds["together"] < max(alone) < bounds["together"]
    assert all(1 <= value < 2 for name, value in bounds.items() if name != "together")
    assert bounds["selection"] > 1 < bounds["decomposition"] < 1.3


def test_at_large_batches_weighing_sets_beats_choosing_alone_and_both_beat_no_drafts():
    rates = lesson.at_scale("Alpaca", 32, 192, ("68M", "none", "spin", "spin-full"))
    assert rates["none"] < 0.95 * rates["spin"] and rates["spin"] > 0.95 * rates["68M"]
    assert rates["spin-full"] > 1.02 * rates["spin"]


RATES = {"ours, plain": 8, "ours, vanilla": 10, "+ selection": 11, "+ decomposition": 12,
         "ours, SPIN": 13, "ours, fixed": 12}


def put(folder, path: str, name: str, rows: list[dict], **about) -> None:
    """A report of ``bench NAME --json``, in ``folder/data``."""
    path = folder / "data" / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"name": name, "rows": rows, "bars": [], "notes": [], **about}))


def peers_rows(batch: int, workloads, names=tuple(RATES), temperature: float = 0.0) -> list[dict]:
    return [{"batch": batch, "temperature": temperature, "contender": name, **dict.fromkeys(workloads, RATES[name])}
            for name in names] + [{"batch": batch, "temperature": temperature, "contender": "oracle", "vs_plain": 2.0}]


def test_what_peers_measured_is_read_on_every_machine(tmp_path):
    assert lesson.recorded(tmp_path) == []
    rows = peers_rows(8, ("chat", "mix")) + peers_rows(8, ("mix",), temperature=1.0)
    rows.append(rows[5] | {"chat": 9, "mix": 14})           # another fixed drafter
    put(tmp_path, "box/peers.json", "peers", rows, cpu="x")
    put(tmp_path, "card/peers.json", "peers", peers_rows(1, ("mix",)) + peers_rows(16, ("mix",)))
    box, one, sixteen = found = lesson.recorded(tmp_path)
    assert box.systems()["chat"] == {"vanilla": 10, "best fixed drafter": 12, "SPIN": 13}
    assert box.systems()["mix"]["best fixed drafter"] == 14 and box.origin == {"cpu": "x"}
    assert box.over("vanilla") == pytest.approx(
        {"plain": .8, "vanilla": 1, "+ selection": 1.1, "+ decomposition": 1.2, "+ pipeline": 1.3})
    assert (box.name, one.name, one.batch, sixteen.batch) == ("embedded models, box", "embedded models, card", 1, 16)
    assert lesson.like_the_paper(found) == [box, one], "8 is as near to 1 as it gets"


@pytest.mark.parametrize("rows, systems, ladder", [
    (peers_rows(1, ("mix",)), {"mix": {"vanilla": 10, "best fixed drafter": 12, "SPIN": 13}}, 5),
    (peers_rows(8, ("chat",), ("ours, plain", "ours, SPIN")), {"chat": {"SPIN": 13}}, 0),
    (peers_rows(8, ("mix",), ("ours, vanilla",), 1.0), {"mix": {"vanilla": 10}}, 1),
    (peers_rows(8, ("mix",), ("ours, plain",)), {}, 0)])
def test_of_an_unfinished_run_what_is_there_is_shown(tmp_path, rows, systems, ladder):
    put(tmp_path, "box/peers.json", "peers", rows)
    found, = lesson.recorded(tmp_path)
    assert found.systems() == systems and len(found.over("vanilla")) == ladder
    assert ("temperature 1" in found.name) == (rows[0]["temperature"] == 1)
    overall = plots.overall_goodput({"7B": {"A": dict(zip(plots.SYSTEMS, (1.0, 2.0, 3.0)))}}, 2.28,
                                    {"box": found.systems()} if systems else {})
    assert len([a for a in overall.axes if a.get_title(loc="left").startswith("measured: box")]) == bool(systems)
    shown = plots.measured_ladders({"box": {8: found.over("plain")}}, lesson.LADDER).axes[0].patches
    assert len(shown) == len(found.over("plain"))
    three = plots.measured_ladders({"box": dict.fromkeys((1, 8, 16), found.over("plain"))}, lesson.LADDER)
    assert [panel.get_subplotspec().colspan.start for panel in three.axes] == [0, 1, 0]     # no more than two in a row


def test_the_gain_by_batch_is_read_and_drawn(tmp_path):
    assert lesson.gain_by_batch(tmp_path) is None
    rows = [{"contender": name, "temperature": t, "batch": b, "tokens_per_s": rate, "over_plain": gain,
             "over_plain_low": low, "over_plain_high": gain} for t in (0.0, 1.0) for name, b, rate, gain, low in (
                 ("ours, plain", 1, 10, 1, 1), ("ours, plain", 8, 40, 1, 1), ("ours, plain", 16, 45, 1, 1),
                 ("ours, SPIN", 1, 15, 1.5, 1.4), ("ours, SPIN", 8, 44, 1.1, 0.9), ("ours, SPIN", 16, 45, 1.0, None))]
    put(tmp_path, "box/plain.json", "plain", rows)
    gains, step, _ = lesson.gain_by_batch(tmp_path)
    assert step == {1: .1, 8: .2, 16: pytest.approx(16 / 45)} and gains[1.0][8]["over_plain"] == 1.1
    ridge = lesson.ridge(step)          # the line through the last two meets 0.1 s there
    assert .2 + (step[16] - .2) / 8 * (ridge - 8) == pytest.approx(.1)
    titles = [a.get_title(loc="left") for a in plots.gain_by_batch(gains, step, ridge).axes]
    assert titles == ["Greedy: 1.50 at batch 1, 1.00 at batch 16", f"The ridge: {ridge:.1f} rows"]


def test_the_system_section_of_bench_gpu_is_read(tmp_path):
    rungs = {"ours, plain": 40.0, "ours, vanilla": 50.0, "+ selection": 45.0, "+ decomposition": 60.0,
             "+ pipeline": 66.0}
    put(tmp_path, "card/gpu.json", "gpu", gpu="G", rows=[
        *({"section": "system", "batch": b, "rung": r, "tokens_per_s": b * rate}
          for b in (1, 8) for r, rate in rungs.items()),
        {"section": "system", "batch": 32, "rung": "ours, plain", "tokens_per_s": 900.0},
        {"section": "verify", "batch": 8}])
    one, eight, started = found = lesson.recorded(tmp_path)
    assert [o.batch for o in found] == [1, 8, 32]
    assert eight.name == "LLaMA-7B shape, card" and eight.origin == {"gpu": "G"}
    assert eight.over("plain") == pytest.approx(
        {"plain": 1, "vanilla": 1.25, "+ selection": 1.125, "+ decomposition": 1.5, "+ pipeline": 1.65})
    assert started.over("plain") == {"plain": 1} and started.over("vanilla") == {} == started.systems()
    assert lesson.like_the_paper(found) == [eight]


def test_the_benchmarks_systems_are_known_by_name():
    """Else their rows would be left out in silence."""
    assert {names.PLAIN, names.FIXED, names.SPIN, *names.RUNGS, names.WHOLE} <= lesson.LADDER_NAMES.keys()
    assert set(lesson.LADDER) <= set(lesson.LADDER_NAMES.values())
