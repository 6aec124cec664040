"""Measured costs: sensible, kept, measured anew when what is kept is no good."""

from __future__ import annotations

import json

import pytest
import torch

from spin_core.decompose import calibrate
from spin_core.decompose.calibrate import measure, measured
from spin_core.decompose.costs import FIELDS, Costs, Heads, typical

CPU = torch.device("cpu")
ASK = (CPU, torch.float32, 1, 2, 8, 1)


@pytest.fixture
def misfit():
    """How badly the next fits explain what they were made from; a list of one."""
    return [0.05]


@pytest.fixture
def counted(tmp_path, monkeypatch, misfit):
    """Measurements that cost nothing and are counted, in a cache folder of their own."""
    made = []

    def once(device, dtype, heads, dim):
        made.append(heads)
        return Costs(heads.kv, heads.group, *range(len(FIELDS))), misfit[0]

    monkeypatch.setenv("SPIN_HOME", str(tmp_path))
    monkeypatch.setattr(calibrate, "measure", once)
    measured.cache_clear()
    yield made
    measured.cache_clear()


def test_measured_once_and_kept(counted, tmp_path):
    first = measured(*ASK)
    measured.cache_clear()          # another process
    assert measured(*ASK) == first and len(counted) == 1
    measured(CPU, torch.float32, 2, 2, 8, 1)
    assert len(counted) == 2 and len(list(tmp_path.rglob("*.json"))) == 2


@pytest.mark.parametrize("spoil",
                         [lambda text: text[:20], lambda text: "[]", lambda text: text.replace("unpooled_key", "key"),
                                   lambda text: json.dumps(json.loads(text) | {"key": ["another device"]})])
def test_what_is_spoilt_is_measured_anew(counted, tmp_path, spoil):
    first = measured(*ASK)
    path, = tmp_path.rglob("*.json")
    path.write_text(spoil(path.read_text()))
    measured.cache_clear()
    assert measured(*ASK) == first and len(counted) == 2
    measured.cache_clear()
    assert measured(*ASK) == first and len(counted) == 2, "the new measurement was kept"


def test_a_cache_that_cannot_be_written(counted, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPIN_HOME", str(tmp_path / "file"))
    assert measured(*ASK).group == 2


def test_on_a_busy_machine_nothing_is_kept(counted, tmp_path, misfit):
    misfit[0] = 3.0
    assert measured(*ASK) == typical(torch.float32, Heads(1, 2), 8)
    assert len(counted) == calibrate.TRIES and not list(tmp_path.rglob("*.json"))


def test_a_measurement_tells_large_from_small(monkeypatch):
    """No times are asserted, only what must hold on any machine that has a quiet moment: long requests cost more."""
    monkeypatch.setattr(calibrate, "WEIGHTS", 1 << 20)

    def tells() -> bool:
        found, misfit = measure(CPU, torch.float32, Heads(1, 2), 16, rounds=2)
        assert misfit >= 0 and all(0 <= getattr(found, name) < 1 for name in FIELDS)
        pooled = [found.pool(1, width, 5) + found.calls(True, False, width) for width in (30, 900)]
        return found.unpooled(900, 5) > found.unpooled(30, 5) > 0 and pooled[1] > pooled[0] > 0

    assert any(tells() for _ in range(3))
