"""The long-context lesson: its numbers are the model's, its pictures render, its exercises know right from wrong."""

from __future__ import annotations

import json
from pydoc_data.topics import topics

import pytest
import tiny

from spin_core.lab.results import figures
from spin_core.lab.lessons import look as base
from spin_core.lab.lessons.l9_long_context import measure as lesson, plots, widgets
from spin_core.lab.results.stored import stored
from spin_core.lab.simulate.recording import Recording
from spin_core.lab.simulate import spire


def test_the_multipliers_are_the_published_ones_and_follow_from_the_passes():
    assert {k: round(v, 2) for k, v in lesson.multipliers(64, 512).items()} == spire.PUBLISHED
    passes = lesson.roofline(64, 512)
    plain, verify, draft = (passes[n].time for n in ("target, 1 token", "target, 5 tokens", "MagicDec draft"))
    assert lesson.multipliers(64, 512)["MagicDec"] == pytest.approx(3.891 / ((4 * draft + verify) / plain))
    assert lesson.costs(64, [512])["multiplier"] == [lesson.multipliers(64, 512)["MagicDec"]]
    assert len(passes) == 5


def test_tau_at_other_lengths_grows_and_is_the_published_one_at_four():
    taus = [lesson.tau(spire.SPIRE, 512, k) for k in range(1, 9)]
    assert taus == sorted(taus) and taus[3] == 3.401 and 1 < taus[0] < 2
    assert lesson.tau(spire.SPIRE, 512, 5) - 3.401 < 3.401 - taus[2]


def test_magicdecs_two_ratios_fall_with_the_context():
    lines = lesson.costs(256)
    assert lines["verify"][0] > 2 and lines["verify"][-1] == pytest.approx(1)   # arithmetic first, the cache in the end
    assert lines["draft"][0] > .5 and lines["draft"][-1] < .2
    assert lines["multiplier"][-1] > 2 > 1 > lines["multiplier"][0]


def test_pictures_and_widget_render(tmp_path):
    panel = widgets.model()
    before = bytes(panel.picture.value)
    panel.children[0].children[1].value = 65536
    assert bytes(panel.picture.value) != before and before.startswith(b"\x89PNG")
    settings = {"B 64, L 512": (lesson.multipliers(64, 512), spire.PUBLISHED)}
    rows = [{"texts": "documents", "window": "1/2", "acceptance": .95, "tokens_per_verification": 4.2},
            {"texts": "joined", "window": "64", "acceptance": .8, "tokens_per_verification": 3.2}]
    for figure in (plots.multipliers(settings, [512, 1024], {"1/8": [1.3, 1.2], "64": [1.3, 1.1]}),
                   plots.costs(lesson.CONTEXTS, {b: lesson.costs(b) for b in (1, 64)}),
                   plots.ladder(spire.ablation(), {}), plots.ladder(spire.ablation(), {"SPIRe": 1.5}),
                   plots.acceptance(rows, .9)):
        assert base.png(figure, 60)
    sampled = rows[0] | {"decoding": "sampled", "acceptance": .91}
    left = plots.acceptance([*rows[:1], sampled, rows[1]], .9, [rows[1] | {"acceptance": .75}, rows[0] | {"window": "1/8"}]).axes[0]
    (x,), (y,) = left.lines[0].get_data()
    assert (x, y) == (.75, left.get_yticks()[2]) and "sampled" in left.get_yticklabels()[1].get_text()


def test_acceptance_is_measured_and_falls_with_the_window(monkeypatch):
    texts = [[(3 * i + j) % tiny.VOCAB for i in range(40)] for j in range(3)]
    monkeypatch.setattr(lesson.bench, "texts", lambda *args: texts)
    everything, little = lesson.acceptance(tiny.family(), "joined", ["1/1", "2"], 40, 3, 30)
    assert everything["acceptance"] == 1 and little["acceptance"] < .9 and everything["prompt_tokens"] == 40


def put(folder, name: str, rows: list[dict], cpu: str = "AMD EPYC") -> None:
    path = folder / "data" / "box" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"name": name, "rows": rows, "notes": [], "bars": [], "cpu": cpu}))


def test_stored_acceptance_is_without_the_ladder(tmp_path, monkeypatch):
    monkeypatch.setattr(lesson, "stored", lambda name, wanted: stored(name, wanted, tmp_path))
    assert lesson.stored_acceptance() is None
    put(tmp_path, "spire", [{"rung": "SPIRe"}, {"texts": "joined", "window": "1/2"}])
    rows, origin = lesson.stored_acceptance()
    assert rows == [{"texts": "joined", "window": "1/2"}] and origin["cpu"] == "AMD EPYC"


def test_the_model_on_our_family_is_the_formula_and_stands_beside_what_was_measured(tmp_path):
    recording = Recording.load()
    here = recording.about["cpu"]           # times of another machine do not fit the recorded passes
    target, draft = recording.passes["target"], recording.passes["fed-1L-4k"](8)
    assert lesson.our_family(8, 2, tmp_path) == ([], {})
    put(tmp_path, "drafters", [{"workload": w, "drafter": d, "tau2": 1.5, "tau3": 1.6} for w in ("mix", "chat")
                               for d in ("fed-1L-4k", "ngram", "unknown")])
    fed, ngram = lesson.our_family(8, 2, tmp_path)[0]
    assert fed["modelled"] == pytest.approx(1.5 * target(8) / (2 * draft + target(24)), rel=.01) and "own" not in fed
    assert ngram["modelled"] > fed["modelled"], "a look-up costs nothing, and often drafts nothing"
    put(tmp_path, "peers", [{"contender": c, "drafter": d, "gamma": g, "batch": 8, "temperature": 0.0, "tokens_per_s": rate,
                             "tokens_per_verification": 1.4, "acceptance": .2}
                            for c, d, g, rate in (("ours, plain", None, None, 50.0), ("ours, fixed", "fed-1L-4k", 2, 45.0))], here)
    rows, origin = lesson.our_family(8, 2, tmp_path)
    assert rows[0]["measured"] == pytest.approx(.9) and origin == {"cpu": here} and "measured" not in rows[1]
    assert rows[0]["own"] == pytest.approx(1.4 * target(8) / (2 * draft + target(24)))
    for batch, gamma in ((4, 2), (8, 3)):
        assert "measured" not in lesson.our_family(batch, gamma, tmp_path)[0][0], "another setting"


def test_the_widget_moves_the_model_on_our_family():
    panel = widgets.our_family()
    batch, gamma = panel.children[0].children
    for control in (batch, gamma):
        before = bytes(panel.picture.value)
        control.value = 4
        assert bytes(panel.picture.value) != before


def test_a_recorded_ladder_is_found_and_a_missing_one_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr(figures, "default_directory", lambda: tmp_path)
    assert lesson.measured_ladder() is None
    (tmp_path / "data" / "here").mkdir(parents=True)
    (tmp_path / "data" / "here" / "spire-ladder.json").write_text(
        '{"name": "spire", "rows": [{"rung": "SPIRe", "steps": 3}, {"window": "64"}], "notes": [], "bars": [], '
        '"commit": "c"}')
    assert lesson.measured_ladder() == ([{"rung": "SPIRe", "steps": 3}], {"commit": "c"})


def test_joined_prompts_are_as_long_as_asked_for():
    pieces = iter(["one two", "three", "four five six"] * 50)
    family = tiny.TinyFamily(None, {})
    family.encode = lambda text: [0] * len(text)
    assert 300 < len(lesson.bench.joined(family, pieces, 500)) <= 500
    with pytest.raises(ValueError, match="not enough texts"):       # and no endless loop
        lesson.bench.joined(family, iter(["short"] * 9), 5000)


def test_documents_are_plain_text_that_does_not_overlap():
    class Family:
        def tokenizer(self, text):
            return {"input_ids": list(text)}

    parts = lesson.bench.documents(Family(), 9, 1000)
    assert all(len(part) == 1000 for part in parts) and len(set(map(tuple, parts))) == 9
    assert all(any("".join(part) in topics[name] for name in lesson.bench.TOPICS) for part in parts)
    assert {"".join(part) for part in parts} >= {topics[name][:1000] for name in lesson.bench.TOPICS}
    with pytest.raises(ValueError, match="documents of 50000 tokens, not 9"):
        lesson.bench.documents(Family(), 9, 50_000)
