"""State that stays on the device: by hand, by the kernel as by torch, and in two launches without a wait."""

from __future__ import annotations

import pytest
import torch
from chain_cases import SAMPLED, make_batch, params_list
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from spin_core.draft.base import Draft
from spin_core.request import SamplingParams
from spin_core.sampling import SamplingBatch
from spin_core.verify import Progress, Verdict, verify_chain

pytestmark = pytest.mark.usefixtures("patched_once")
SMALL = dict(block=64, tiles=1, drawn=64)


def progress(position: list[int], slots: int, caches: int = 2, device: str = "cpu") -> Progress:
    """Requests in the last slots, backwards; the target's cache holds 9 tokens beyond the text, the other one 3."""
    slot = torch.arange(slots - 1, slots - 1 - len(position), -1)
    lengths = torch.full((caches, slots), -7)
    for cache in range(caches):
        lengths[cache, slot] = torch.tensor(position, dtype=torch.int64) + (9 if cache == 0 else 3)
    tensors = torch.tensor(position, dtype=torch.int64), torch.full((len(position),), -5), slot, lengths
    return Progress(*(x.to(device) for x in tensors))


def same(a: Progress, b: Progress) -> bool:
    return all(torch.equal(getattr(a, n).cpu(), getattr(b, n).cpu()) for n in ("position", "last", "slot", "lengths"))


def test_by_hand():
    """One accepts 2 and gets token 8; one fails; one accepts nothing. The drafter's cache ends before the target's."""
    state = progress([10, 20, 30], slots=4)
    state.lengths[1, state.slot] = torch.tensor([11, 23, 30])
    verdict = Verdict(torch.tensor([2, 0, 0]), torch.tensor([[4, 6, 8], [-1, -1, -1], [3, -1, -1]]),
                      torch.tensor([False, True, False]))
    state.advance(verdict, state.position)
    assert state.position.tolist() == [13, 20, 31] and state.last.tolist() == [8, -5, 3]
    assert state.lengths.tolist() == [[-7, 30, 29, 12], [-7, 30, 23, 11]]       # all but the last token, at most


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> str:
    triton = pytest.importorskip("triton")
    if request.param == "cpu" and not triton.knobs.runtime.interpret:
        pytest.skip("the kernel is compiled in this process")
    return request.param


@given(params_list, st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_kernel_advances_as_torch_does(device, params, data):
    """Ragged, greedy and sampling, failures, one cache or two; the verdict is what it is without."""
    from spin_core.verify import kernel

    counts = [data.draw(st.integers(0, 3)) for _ in params]
    logits, draft = make_batch(counts, 90, data.draw(st.integers(0, 10**6)))
    for row in data.draw(st.lists(st.integers(0, max(0, len(logits) - 1)), max_size=1 if params else 0)):
        logits[row, 3] = torch.nan
    position, caches = [5 + 3 * b for b in range(len(params))], data.draw(st.integers(1, 2))
    sampling = SamplingBatch.from_params(params)
    want = progress(position, 9, caches)
    expected = verify_chain(logits, draft, sampling, torch.tensor(position, dtype=torch.int64), progress=want)
    have = progress(position, 9, caches, device)
    there = Draft(*(None if x is None else x.to(device) for x in (draft.tokens, draft.cu, draft.probs, draft.prob_row)))
    got = kernel.verify_chain(logits.to(device), there, SamplingBatch.from_params(params, device), have.position,
                              progress=have, **SMALL)        # positions are read and written in one tensor
    assert torch.equal(got.tokens.cpu(), expected.tokens) and same(have, want)


class Operations(TorchDispatchMode):
    """Which torch operations ran, but for those that only ask for memory or look at it differently."""

    FREE = ("empty", "view", "slice", "select", "detach", "as_strided", "alias")

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.overloadpacket.__name__ not in self.FREE:
            self.names.append(str(op))
        return op(*args, **kwargs or {})


def test_a_step_is_two_launches_and_asks_the_device_nothing(monkeypatch):
    """In the interpreter: one torch operation, clearing the queue, and one kernel; no number comes to the host."""
    pytest.importorskip("triton")
    from spin_core.verify import kernel

    class Counted:
        def __getitem__(self, grid):
            launches.append(grid)
            return lambda *args, **options: None        # what is inside the kernel is one launch

    launches: list = []
    monkeypatch.setattr(kernel, "_verify", Counted())
    logits, draft = make_batch([4, 2, 0], 300, seed=1)
    for params in (SAMPLED, SamplingParams(), SAMPLED.with_(top_k=5, top_p=0.9)):
        sampling, state = SamplingBatch.from_params([params] * 3), progress([7, 8, 9], 3)
        launches.clear()
        with Operations() as operations:
            kernel.verify_chain(logits, draft, sampling, state.position, 4, state)
        assert operations.names == ["aten.zeros.default"] and len(launches) == 1


def test_without_a_bound_the_host_has_to_ask(monkeypatch):
    """The count above would notice: the largest count of drafted tokens is a number that the host waits for."""
    pytest.importorskip("triton")
    from spin_core.verify import kernel

    monkeypatch.setattr(kernel, "_verify", {(2,): lambda *args, **options: None})
    logits, draft = make_batch([4, 2], 60, seed=1)
    with Operations() as operations:
        kernel.verify_chain(logits, draft, SamplingBatch.from_params([SAMPLED] * 2), torch.tensor([7, 8]))
    assert any("_local_scalar_dense" in name for name in operations.names)
