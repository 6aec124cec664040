"""What two threads share: cache slots and the trace, under stress."""

from __future__ import annotations

import random
import sys
import threading

import pytest
import torch

from spin_core.runtime import SlotCache
from spin_core.trace import Trace


@pytest.fixture(autouse=True)
def restless_interpreter():
    """Threads take turns far more often than they usually do."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def in_threads(*calls) -> None:
    errors: list[BaseException] = []

    def guarded(call) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not errors, errors


def churn(cache: SlotCache, slots: list[int], seed: int) -> dict[int, list[float]]:
    """Write, roll back and read slots at random, checking every read; what they hold in the end."""
    dice, held = random.Random(seed), {slot: [] for slot in slots}
    for _ in range(400):
        slot = dice.choice(slots)
        values = [dice.random() for _ in range(dice.randint(1, 5))]
        if len(held[slot]) + len(values) > cache.max_len or dice.random() < 0.3:
            held[slot] = held[slot][:dice.randint(0, len(held[slot]))]
            cache.truncate(slot, len(held[slot]))
        else:
            index = torch.arange(len(held[slot]), len(held[slot]) + len(values))
            new = torch.tensor(values, dtype=torch.float64)[:, None, None].expand(-1, 2, 3)
            cache.check_room(slot, len(values))
            cache.write(0, torch.full((len(values),), slot), index, new, -new)
            cache.lengths[slot] += len(values)
            held[slot] += values
        length = cache.lengths[slot]
        assert length == len(held[slot])
        assert cache.k[0][slot, 1, :length, 2].tolist() == held[slot]
        assert cache.v[0][slot, 0, :length, 0].tolist() == [-v for v in held[slot]]
    return held


def test_threads_with_slots_of_their_own_do_not_disturb_each_other():
    cache = SlotCache(1, 6, 2, 16, 3, torch.float64)
    results: dict[int, list[float]] = {}
    in_threads(*(lambda s=s: results.update(churn(cache, [s, s + 3], s)) for s in range(3)))
    for slot, values in results.items():
        assert cache.lengths[slot] == len(values)
        assert cache.k[0][slot, 0, :len(values), 0].tolist() == values


def test_no_event_is_lost_and_times_never_go_back():
    trace = Trace()
    in_threads(*(lambda t=t: [trace.add("step", t, step=i) for i in range(2000)] for t in range(4)))
    assert len(trace.events) == 8000
    for t in range(4):
        assert [e.step for e in trace.events if e.request == t] == list(range(2000))
    assert all(a.time <= b.time for a, b in zip(trace.events, trace.events[1:]))
