"""Reading a real engine's events: fates, texts, distributions and the random number of every place."""

from __future__ import annotations

import pytest
import tiny

from spin_core.engine import Engine
from spin_core.lab.lessons.l1_speculation.steps import FATES, read_steps
from spin_core.request import SamplingParams
from spin_core.trace import Event

PROMPT = [5, 9, 20]


def run(drafter: str = "near", **params):
    engine = Engine(tiny.family(), drafter, gamma=3, max_batch=1, record_probs=True)
    params = {"temperature": 1.0, "max_new_tokens": 40, "seed": 3} | params
    request, = engine.generate([PROMPT], SamplingParams(**params))
    return request, read_steps(request, engine.trace.events, tiny.family().decode)


@pytest.mark.parametrize("drafter", tiny.DRAFTERS)
def test_the_steps_spell_the_text_and_end_as_they_must(drafter):
    request, steps = run(drafter)
    text = "".join(text for step in steps for text, _ in step.emitted)
    assert text == tiny.family().decode(request.output_ids)
    before = ""
    for step in steps:
        assert step.before == before
        before += "".join(text for text, _ in step.emitted)
        assert set(step.fates) <= set(FATES) and len(step.fates) == len(step.drafted)
        assert (step.own_fate == "replacement") == ("rejected" in step.fates)
        assert len(step.places) == len(step.drafted) + 1


def test_the_places_show_the_distributions_and_the_test_that_was_made():
    _, steps = run()
    seen = {fate: 0 for fate in FATES}
    for step in steps:
        for j, place in enumerate(step.places):
            assert sum(place.p) == pytest.approx(1)
            assert place.tokens[-1] == "all others"
            if j == len(step.drafted):
                assert place.q == [] and place.drafted is None and place.residual == pytest.approx(place.p)
                seen["bonus"] += step.own_fate == "bonus"
                continue
            assert sum(place.q) == pytest.approx(1)
            assert place.tokens[place.drafted] == step.drafted[j]
            seen[step.fates[j]] += 1
            if step.fates[j] == "unseen":
                assert place.u is None
                continue
            p, q = place.p[place.drafted], place.q[place.drafted]
            assert (place.u * q < p) == (step.fates[j] == "accepted")
            if step.fates[j] == "rejected":
                assert place.tokens[place.emitted] == step.own
                assert place.residual[place.emitted] > 0
                seen["replacement"] += 1
    assert all(seen.values()), "the run should show every fate at least once"


def test_greedy_requests_have_one_hot_distributions_and_no_random_number():
    _, steps = run(temperature=0.0)
    for step in steps:
        for place in step.places:
            assert place.u is None and max(place.p) == 1


def test_a_text_that_ends_inside_the_accepted_run_has_no_token_of_the_target():
    request, _ = run()
    request.output_ids = [7, 8]
    event = Event("step", 0.0, request.id, drafted=[7, 8, 9], accepted=2, emitted=[7, 8], context=3)
    step, = read_steps(request, [event], tiny.family().decode)
    assert step.fates == ["accepted", "accepted", "unseen"] and step.own is None and step.places == []
    assert [fate for _, fate in step.emitted] == ["accepted", "accepted"]


def test_other_requests_and_steps_that_only_read_a_prompt_are_left_out():
    request, _ = run()
    events = [Event("step", 0.0, request.id + 1, emitted=[1]), Event("step", 0.0, request.id),
              Event("finish", 0.0, request.id)]
    assert read_steps(request, events, tiny.family().decode) == []
