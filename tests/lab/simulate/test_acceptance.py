"""Made-up recordings have the published properties, and no others are claimed."""

from __future__ import annotations

import numpy as np
import pytest

from spin_core.lab.simulate import acceptance, paper
from spin_core.lab.simulate.acceptance import DATA_SETS, NAMES, SHARES, hits, recording
from spin_core.lab.simulate.costs import Roofline
from spin_core.lab.simulate.profiles import DRAFTERS, HARDWARE, TARGETS

COSTS = Roofline(TARGETS["LLaMA-7B"], DRAFTERS, HARDWARE["V100-32GB"])


@pytest.fixture(scope="module")
def recordings():
    return {name: recording(name, 600, COSTS.passes(), seed=1) for name in NAMES}


@pytest.mark.parametrize("name", DATA_SETS)
def test_hits_and_runs_of_265m_are_those_of_its_model_card(name, recordings):
    rec, data = recordings[name], DATA_SETS[name]
    chain = rec.accepted[rec.arms.index("265M")]
    hit = chain > 0
    first = np.zeros(len(hit), bool)
    first[rec.starts[:-1]] = True
    begins = hit & (first | ~np.roll(hit, 1))
    assert hit.mean() == pytest.approx(data.hit, abs=0.015)
    assert hit.sum() / begins.sum() == pytest.approx(data.run, rel=0.04)


@pytest.mark.parametrize("name, share", SHARES.items())
def test_265m_is_the_best_for_the_published_share_of_requests(name, share, recordings):
    """Best: the most tokens per second at batch 8 on the paper's hardware, four drafted tokens per step."""
    shares = paper.best_shares(recordings[name])
    assert sum(shares.values()) == pytest.approx(1) and shares["265M"] == pytest.approx(share, abs=0.035)


def test_runs_have_the_promised_chain():
    rng = np.random.default_rng(0)
    got = hits(0.6, 0.3, 200_000, rng)
    assert got.mean() == pytest.approx(0.6, abs=0.01)
    assert got[1:][got[:-1]].mean() == pytest.approx(0.6 + 0.3 * 0.4, abs=0.01)


def test_bigger_drafters_hit_more():
    for data in DATA_SETS.values():
        rates = [data.mean_hit(d) for d in DRAFTERS if d != "265M"]
        assert rates == sorted(rates)
        assert all(0 < acceptance._distribution(data, d)[1] < 1 for d in DRAFTERS)


def test_a_mix_takes_turns_and_a_seed_is_a_recording(recordings):
    assert recordings["Mix"].workloads[:6] == ("Alpaca", "CP", "CIP") * 2
    one, same, other = (recording("CP", 5, COSTS.passes(), seed=s) for s in (4, 4, 5))
    assert (one.accepted == same.accepted).all() and one.accepted.shape != other.accepted.shape
    assert one.about["kind"] == "modelled"


def test_unknown_data_sets_are_refused():
    with pytest.raises(ValueError, match="'Dolly'"):
        recording("Dolly", 5, COSTS.passes())
