"""Parameters are checked when they are made; a request knows its committed sequence."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from spin_core.request import FinishReason, Request, SamplingParams


@pytest.mark.parametrize("name, bad", [
    ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("top_k", -1), ("top_p", 0.0),
    ("top_p", 1.1), ("top_p", math.nan), ("min_p", -0.1), ("min_p", 1.1), ("min_p", math.nan),
    ("max_new_tokens", -1), ("seed", -1), ("seed", 2**63)])
def test_an_impossible_value_is_refused_and_named(name, bad):
    with pytest.raises(ValueError, match=f"SamplingParams: {name}"):
        SamplingParams(**{name: bad})


@pytest.mark.parametrize("name, bad", [
    ("temperature", "1"), ("temperature", None), ("top_p", "x"), ("min_p", [0.1]), ("top_k", 1.5), ("seed", 0.5),
    ("max_new_tokens", 2.5), ("max_new_tokens", "9"), ("stop_ids", (1.5,)), ("stop", (1,)), ("stop", None), ("stop", 5),
    ("stop_ids", 2)])
def test_a_value_of_the_wrong_kind_is_refused_and_named(name, bad):
    with pytest.raises(ValueError, match=f"SamplingParams: {name}"):
        SamplingParams(**{name: bad})


def test_the_limits_themselves_are_allowed():
    SamplingParams(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, max_new_tokens=0, seed=0)
    SamplingParams(temperature=1e9, top_p=1e-9, min_p=1.0, seed=2**63 - 1, stop_ids=())


def test_stops_are_normalised():
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams(stop_ids=[1, 2]).stop_ids == (1, 2)
    assert SamplingParams().stop_ids is None and SamplingParams(stop_ids=()).stop_ids == ()
    with pytest.raises(ValueError, match="stop strings"):
        SamplingParams(stop=("a", ""))


def test_greedy_means_temperature_zero():
    assert SamplingParams().greedy and not SamplingParams(temperature=1e-6).greedy


def test_with_changes_a_copy_and_checks_it():
    params = SamplingParams(seed=4)
    assert params.with_(temperature=0.5) == SamplingParams(seed=4, temperature=0.5) and params.greedy
    with pytest.raises(ValueError, match="top_p"):
        params.with_(top_p=2.0)


@given(prompt=st.lists(st.integers(), max_size=6), output=st.lists(st.integers(), max_size=6), data=st.data())
def test_the_committed_sequence_is_prompt_then_output(prompt, output, data):
    request = Request(prompt, SamplingParams(max_new_tokens=6), output_ids=output)
    whole = prompt + output
    assert request.ids == whole and request.length == len(whole) and request.remaining == 6 - len(output)
    start = data.draw(st.integers(0, len(whole)))
    assert request.tail(start) == whole[start:]


def test_requests_have_names_of_their_own_and_are_equal_only_to_themselves():
    a, b = Request([1], SamplingParams()), Request([1], SamplingParams())
    assert a.id != b.id and a != b and not a.finished
    a.finish_reason = FinishReason.STOP
    assert a.finished and not b.finished
