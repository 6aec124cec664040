"""Pages that play without a kernel: the race and the selection stepper; and work behind a button."""

from __future__ import annotations

import io
import json
import re
import threading

import numpy as np
import pytest
import tiny
from PIL import Image

from spin_core.lab.bench import race as bench
from spin_core.lab.lessons import pages, race
from spin_core.lab.lessons.l3_selection import measure, stepper
from spin_core.lab.lessons.panel import Panel, Work
from spin_core.request import SamplingParams

GAMMAS = {"reads": 4, "copies": 4}


def numbers(page) -> dict:
    """The data inside a page."""
    return json.loads(re.search(r"data = (\{.*?\});\nconst style", page.data, re.S)[1])


@pytest.fixture(scope="module")
def rows():
    family = tiny.family()
    return bench.record(family, [1, 2, 4], [[5, 6], [7, 8]], tokens=12)


def test_every_lane_writes_the_same_text_and_no_lane_takes_more_passes_than_tokens(rows):
    lanes = race.lanes(rows, race.THREE)
    texts = {"".join(token for step in lane["steps"] for token in step["emitted"]) for lane in lanes}
    assert len(texts) == 1 and all(lane["tokens"] == lanes[0]["tokens"] for lane in lanes)
    assert len(lanes[0]["steps"]) == lanes[0]["tokens"] >= max(len(lane["steps"]) for lane in lanes)
    said = race.numbers(lanes, "")["answer"]
    refused = sum(step["accepted"] < min(len(step["drafted"]), len(step["emitted"])) for step in lanes[1]["steps"])
    assert f"guessed {refused} tokens wrong" in said and said.count("drafted:") == min(refused, 8)
    assert all(0 < step["seconds"] >= step["draft_seconds"] for lane in lanes for step in lane["steps"])


def test_the_finding_of_a_race_is_the_ratio_of_its_clocks():
    def row(lane, seconds, emitted):
        return dict(lane=lane, drafter="d", seconds=seconds, draft_seconds=0, drafted=[], accepted=0, emitted=emitted)

    lanes = race.lanes([row(bench.PLAIN, 2.0, ["a"]), row(bench.PLAIN, 1.0, ["b"]), row(bench.ONE, 1.5, ["a", "b"])])
    assert race.finding(lanes) == (
        "2 tokens: plain decoding 3.00 s, one drafter 1.50 s (2.00 times as fast)")
    assert "1 target passes instead of 2; but a step takes 1.00 times as long" in race.why(lanes)
    with pytest.raises(ValueError, match="no lane 'SPIN'"):
        race.lanes([row(bench.PLAIN, 1.0, ["a"])], ("SPIN",))


def test_a_race_ends_when_it_is_told_to():
    assert bench.record(tiny.family(), [1, 2], [[5, 6]], tokens=8, say=lambda what: True) == []
    with pytest.raises(ValueError, match="no test prompt 'nothing'"):
        bench.prompts("chat", "nothing")


def test_a_moving_picture_moves(rows):
    lanes = race.lanes(rows)
    end = max(lane["seconds"] for lane in lanes)
    picture = Image.open(io.BytesIO(pages.animated([race.picture(lanes, at * end) for at in (0.1, 0.5, 1)], 3.0)))
    assert picture.format == "PNG" and picture.n_frames == 4 and picture.default_image
    first = np.asarray(picture.convert("RGB"))          # what a viewer shows that plays nothing: the end
    picture.seek(3)
    assert np.array_equal(first, np.asarray(picture.convert("RGB")))


def test_a_page_keeps_its_numbers_and_no_text_ends_its_script():
    page = pages.page("race", {"title": "</script>", "lanes": []})
    assert page.data.count("</script>") == 1 and numbers(page)["title"] == "</script>"


@pytest.fixture(scope="module")
def stepped():
    recording = measure.shifting(12, shift=False)
    return stepper.replayed(recording, GAMMAS, ["spin", "spin-full", "greedy", "fixed:reads"], batch=4, steps=30, places=2)


def test_hindsight_says_of_the_chosen_drafter_what_it_really_brought(stepped):
    for policy, one in stepped["policies"].items():
        for frame in one["frames"]:
            for row in frame["rows"]:
                if policy != "spin-full" or row["drafted"] == 4:        # spin-full drafts as many tokens as it likes
                    assert row["would"][row["chosen"]] == row["earned"] == row["accepted"] + 1


def test_choices_and_the_oracles_respect_places(stepped):
    for one in stepped["policies"].values():
        for frame in one["frames"]:
            for kind in ("chosen", "star"):
                used = np.bincount([row[kind] for row in frame["rows"]], minlength=3)
                assert (used <= np.maximum(frame["places"], 0)).all()
            assert frame["places"][:2] == [2, 2]


def test_epochs_are_those_of_spin_and_other_policies_have_none(stepped):
    phases = [frame["phase"] for frame in stepped["policies"]["spin"]["frames"]]
    assert phases[:11] == ["explore"] + ["exploit"] * 8 + ["explore", "exploit"]
    assert {frame["phase"] for frame in stepped["policies"]["greedy"]["frames"]} == {None}


def test_the_stepper_shows_what_an_engine_served(stepped):
    from spin_core.lab.explain import watch

    engine = tiny.Engine(tiny.family(), selector="spin", max_batch=2)
    steps = watch(engine.selection.selector)
    with pytest.raises(ValueError, match="chosen nothing yet"):
        stepper.served(steps, "spin")
    requests = engine.generate([[1, 2], [3, 4], [5, 6]], SamplingParams(max_new_tokens=8))
    data = stepper.served(steps, "spin")
    frames = data["policies"]["spin"]["frames"]
    assert frames[-1]["tokens"] == sum(len(r.output_ids) for r in requests)
    assert all(row["star"] is None and row["would"] is None for frame in frames for row in frame["rows"])
    small = stepper.numbers(data)
    assert [dict(zip(small["fields"], row)) for row in small["policies"]["spin"]["frames"][0]["rows"]] == frames[0]["rows"]


def test_work_says_so_at_once_stops_when_told_and_shows_errors():
    going = threading.Event()

    def job(work):
        going.wait(5)
        if work.say("step 1"):
            work.say("stopped")
        else:
            raise OSError("no <room>")

    work = Work(job, "go", "goes")
    start, stop, sign = work.children
    start.click()
    assert "working" in sign.value and start.disabled and not stop.disabled
    stop.click()
    going.set()
    work.thread.join(5)
    assert sign.value == "stopped" and not start.disabled and stop.disabled
    start.click()
    work.thread.join(5)
    assert "OSError: no &lt;room&gt;" in sign.value


def test_a_panel_complains_in_words_and_keeps_its_picture():
    from ipywidgets import IntSlider
    from matplotlib.figure import Figure

    control = IntSlider(1, 0, 3, description="n")

    def draw(n):
        if n == 0:
            raise ValueError("n must be <positive>")
        figure = Figure(figsize=(1, 1))
        figure.text(0, 0, str(n))
        return figure

    panel = Panel([control], draw, presets={"three": {"n": 3}}, task="set n to 0")
    first = panel.picture.value
    control.value = 0
    assert panel.picture.value == first and "n must be &lt;positive&gt;" in panel.sign.value
    panel.children[2].children[1].click()
    assert control.value == 3 and panel.picture.value != first and panel.sign.value == ""
