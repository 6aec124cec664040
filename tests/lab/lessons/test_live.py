"""The live dashboard: a warm engine whose settings change while it serves, and numbers that agree with its trace."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import pytest
import tiny

from spin_core.lab.lessons import look
from spin_core.lab.lessons.l7_paper_figures import live


@pytest.fixture
def server(monkeypatch):
    prompts = [SimpleNamespace(messages=[i, 4], workload="w") for i in range(6)]
    monkeypatch.setattr(live, "load_workload", lambda *_: prompts)
    server = live.Server(tiny.family(), at_once=2, tokens=6)
    yield server
    server.close()


def test_the_numbers_are_those_of_the_trace(server):
    for _ in range(12):
        server.turn()
    numbers, steps = server.numbers(), [e for e in server.engine.trace.events if e.kind == "step"]
    assert numbers["tokens"] == sum(len(e.emitted) for e in steps) > 0
    assert numbers["goodput"] == pytest.approx(numbers["tokens"] / numbers["seconds"])
    assert sum(numbers["served"].values()) == sum(bool(e.emitted) for e in steps)
    shown = live.render(server)
    assert f"data-number='goodput' style='font-size:19px'>{numbers['goodput']:,.1f} tokens/s" in shown
    figure = live.picture(server)
    assert f"{numbers['goodput']:,.1f} tokens/s" in figure.get_suptitle() and len(look.png(figure)) > 1000


def test_settings_change_the_running_engine_and_what_was_learned_stays(server):
    engine, spin = server.engine, server.engine.selection.selector
    for _ in range(4):
        server.turn()
    seen = int(spin.totals[0].sum())
    server.change(policy="fixed:none", at_once=3, micro_batches=2)
    for _ in range(6):
        server.turn()
    assert server.engine is engine and len(server.requests) == 3 and engine.pipeline.count == 2
    assert set(server.numbers()["served"]) == {"none"}
    assert server.history[0]["policy"] == "spin" and server.history[0]["tokens"] > 0
    server.change(policy="spin", micro_batches="auto")
    server.turn()
    assert engine.selection.selector is spin and int(spin.totals[0].sum()) >= seen
    assert engine.pipeline.fixed is None and [one["policy"] for one in server.history] == ["fixed:none", "spin"]
    with pytest.raises(ValueError, match="unknown policy 'best'"):
        server.change(policy="best")


def test_only_the_last_settings_are_kept(server):
    for at_once in (1, 2) * 5:
        server.change(at_once=at_once)
        server.turn()
        server.turn()
    assert len(server.history) == live.KEPT
    assert live.render(server).count("(now)") == 1


def wait(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)


def test_the_dashboard_serves_until_stopped_and_says_at_once_that_it_works(server, monkeypatch):
    monkeypatch.setattr(live, "REDRAW", 0.0)
    panel = live.dashboard(server)
    first = panel.view.value
    assert server.engine.steps == 0 and "press <b>start</b>" in first
    panel.work.start.click()
    assert "⏳" in panel.work.sign.value
    wait(lambda: server.engine.steps > 5 and panel.view.value != first)
    panel.controls["policy"].value = "fixed:near"
    assert "setting drafting to fixed:near" in panel.work.sign.value         # before the change itself
    wait(lambda: server.settings["policy"] == "fixed:near" and "near" in server.numbers()["served"])
    assert set(server.numbers()["served"]) <= {"near", "none"}          # the last token of a text is not drafted
    panel.work.stop.click()
    panel.work.thread.join(20)
    served = server.engine.steps
    assert panel.work.sign.value == "stopped" and not panel.work.start.disabled
    goodput = re.search(r"data-number='goodput'[^>]*>([\d.,]+) tokens/s", panel.view.value)[1]
    assert goodput == f"{server.numbers()['goodput']:,.1f}"
    panel.controls["at_once"].value = 1                                 # while it is stopped
    assert server.settings["at_once"] == 1 and server.engine.steps == served
