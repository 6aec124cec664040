"""What is set for torch's threads, and that nothing of the user's is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from spin_core import threads
from spin_core.lab.provenance import threads_set

PASSIVE = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}


@pytest.fixture(autouse=True)
def three_free_cores(monkeypatch):
    """As in a process that has not loaded torch, on a machine with three idle cores."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(threads, "free_cores", lambda: 3)


def prepared(**environ: str) -> dict[str, str]:
    threads.prepare(environ)
    return environ


def test_idle_threads_sleep_and_there_are_as_many_as_free_cores():
    assert prepared() == PASSIVE | {"OMP_NUM_THREADS": "3",
                                    threads.OURS: "OMP_WAIT_POLICY GOMP_SPINCOUNT OMP_NUM_THREADS"}


@pytest.mark.parametrize("name, value", [("OMP_NUM_THREADS", "7"), ("MKL_NUM_THREADS", "1")])
def test_a_users_number_of_threads_stays(name, value):
    assert prepared(**{name: value}) == PASSIVE | {name: value, threads.OURS: "OMP_WAIT_POLICY GOMP_SPINCOUNT"}


@pytest.mark.parametrize("name, value",
                         [("OMP_WAIT_POLICY", "active"), ("GOMP_SPINCOUNT", "5"), ("KMP_BLOCKTIME", "9")])
def test_a_users_way_of_waiting_stays(name, value):
    assert prepared(**{name: value}) == {name: value, "OMP_NUM_THREADS": "3", threads.OURS: "OMP_NUM_THREADS"}


def test_a_child_decides_anew_and_knows_what_the_user_said(monkeypatch):
    environ = prepared(OMP_WAIT_POLICY="active")
    monkeypatch.setattr(threads, "free_cores", lambda: 1)
    threads.prepare(environ)
    assert environ["OMP_NUM_THREADS"] == "1" and environ["OMP_WAIT_POLICY"] == "active"
    assert threads_set(environ) == {"OMP_NUM_THREADS": "1 (spin_core)", "OMP_WAIT_POLICY": "active (environment)"}


def test_nothing_is_set_when_torch_is_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", object())
    assert prepared() == {}


def test_importing_the_package_prepares_and_does_not_load_torch():
    program = "import os, sys, spin_core; print('torch' in sys.modules, os.environ['OMP_WAIT_POLICY'])"
    names = {*threads.WAITING, *threads.COUNTS, threads.OURS, "KMP_BLOCKTIME"}
    clean = {k: v for k, v in os.environ.items() if k not in names} | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, env=clean)
    assert done.stdout.split() == ["False", "passive"], done.stderr


# ---- free cores

@pytest.mark.parametrize("allowed, cores, busy, limit, free", [
    # busy: percent of the machine
    (8, 8, 0, float("inf"), 8), (8, 8, 50, float("inf"), 4), (8, 8, 100, float("inf"), 1),
    (2, 8, 50, float("inf"), 2), (8, 8, 0, 2.5, 2), (8, 8, 0, 0.5, 1), (1, 8, 0, float("inf"), 1)])
def test_free_cores_are_allowed_idle_and_within_the_quota(monkeypatch, allowed, cores, busy, limit, free):
    monkeypatch.undo()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds: busy)
    monkeypatch.setattr(threads, "quota", lambda: limit)
    assert threads.free_cores() == free


@pytest.mark.parametrize("files, cores", [
    ({"cpu.max": "150000 100000"}, 1.5), ({"cpu.max": "max 100000"}, float("inf")), ({}, float("inf")),
    ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4.0),
    ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, float("inf")),
    ({"cpu.max": "?"}, float("inf"))])
def test_the_quota_of_both_generations_of_cgroups(tmp_path, files, cores):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert threads.quota(tmp_path) == cores
