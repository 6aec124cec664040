"""Simulations side by side: the same results as one after the other, by name and in order."""

import os
import subprocess
import sys
import time
from pathlib import Path

import joblib
import psutil
import pytest

from spin_core.lab.lessons import on_all_cores
from spin_core.lab.simulate import paper


def test_results_come_by_name_in_the_order_of_the_calls():
    assert list(on_all_cores(pow, [3, 1, 2], 2).items()) == [(3, 9), (1, 1), (2, 4)]
    assert on_all_cores(int, {"five": ("101",), "six": ("110",)}, base=2) == {"five": 5, "six": 6}
    assert on_all_cores(pow, []) == {}


def test_functions_of_a_notebook_and_what_they_refer_to_travel():
    base = 7
    assert on_all_cores(lambda one, two: (base + one, two), {"a": (1, "x")}) == {"a": (8, "x")}


@pytest.mark.skipif(joblib.cpu_count() == 1, reason="one core")
def test_calls_run_in_processes_of_their_own():
    assert os.getpid() not in on_all_cores(lambda _: os.getpid(), [1, 2]).values()


def test_an_error_in_one_call_is_raised_here():
    with pytest.raises(ZeroDivisionError):
        on_all_cores(lambda x: 1 / x, [1, 0])


def test_a_simulation_is_the_same_there_as_here():
    here = paper.ladder("Alpaca", requests=12)
    assert on_all_cores(paper.ladder, ["Alpaca"], requests=12) == {"Alpaca": here}


@pytest.mark.skipif(joblib.cpu_count() == 1, reason="one core")
def test_workers_end_soon_after_their_parent_is_killed():
    program = ("import os; from spin_core.lab.lessons.cores import on_all_cores\n"
               "print(*set(on_all_cores(lambda _: os.getpid(), range(8)).values()), flush=True); input()")
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}) as parent:
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert workers
    deadline = time.monotonic() + 30
    while any(worker.is_running() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(worker.is_running() for worker in workers)
