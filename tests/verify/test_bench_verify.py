"""The verifiers' benchmark: its loops give the reference's tokens, and its floor counts what has to be read."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from test_chain import as_lists

from spin_core.bench import verify as bench
from spin_core.draft.base import Draft
from spin_core.verify import Verdict, chain


def test_the_position_loop_gives_the_references_tokens():
    inputs = bench.case(6, 50, torch.float32, "cpu", seed=1)
    verdict = chain.verify_chain(*inputs)
    assert as_lists(verdict) == bench.position_loop(*inputs)
    assert 0 < int(verdict.num_accepted.sum()) < 6 * bench.GAMMA
    assert [len(text) for text in bench.textbook_loop(*inputs[:3])] != [1] * 6


def test_drafts_made_to_be_accepted_are():
    verdict = chain.verify_chain(*bench.case(6, 50, torch.float32, "cpu", 1, accept_all=True))
    assert (verdict.num_accepted == bench.GAMMA).all()


def test_the_floor_by_hand():
    """Rows of 10 logits of 2 bytes; one request rejects its second draft, sampled, one its first, one-hot; one none."""
    draft = Draft(torch.zeros(6, dtype=torch.int64), torch.tensor([0, 2, 4, 6]), torch.zeros(2, 10),
                  torch.tensor([-1, 0, -1, 1, -1, -1]))
    verdict = Verdict(torch.tensor([1, 0, 2]), torch.empty(0), torch.empty(0))
    assert bench.needed_bytes(torch.zeros(9, 10, dtype=torch.bfloat16), draft, verdict) == (2 + 1 + 3) * 20 + 40


def arguments(**others) -> Namespace:
    return Namespace(**{"device": "cpu", "vocab": [300], "batch": [2], "repeats": 1, "tune": False} | others)


def test_on_a_cpu():
    report = bench.run(arguments())
    assert report.rows[0]["same_tokens"] and not report.bars
    assert [bar.target for bar in bench.run(arguments(vocab=[49152], batch=[8])).bars] == [">= 2.0"]


def test_the_gpu_part_as_far_as_a_cpu_can_run_it(monkeypatch):
    """The kernel in the interpreter and a clock that stands still."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("the kernel is compiled in this process")
    monkeypatch.setattr(bench, "copy_bandwidth", lambda: 1e12)
    monkeypatch.setattr(bench, "CACHE_BYTES", 0)
    for name in ("_seconds", "_eager_seconds"):
        monkeypatch.setattr(bench, name, lambda call, inputs, repeats: call(0) and 1e-9)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    report = bench._on_gpu(arguments())
    assert [row["drafts"] for row in report.rows] == ["sampled", "all accepted"] * 2
    for row in report.rows:
        assert row["equal_to_reference"] == 1 and row["reference_us"] > 0 and 0 < row["floor_us"]
    everything = report.rows[1]
    assert everything["floor_us"] == pytest.approx(2 * 5 * 300 * 2 / 1e12 * 1e6)
