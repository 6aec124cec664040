"""The benchmark of attention: its baselines are right and its table is whole."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from ragged_cases import case

from spin_core.lab.bench import verify_attention
from spin_core.decompose import STRATEGIES, calibrate, strategies
from spin_core.decompose.costs import Heads, typical
from spin_core.lab.bench.other_attention import PaddedView, VarlenStep


def test_a_padded_view_of_the_cache_gives_the_same_numbers():
    c = case([(30, 5, None), (7, 3, None), (0, 2, None)], poison=0.0)
    torch.testing.assert_close(PaddedView(c.batch, c.cache).attend(0, c.query, c.scale), c.expected, rtol=1e-12,
                               atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("step", [PaddedView, VarlenStep])
def test_todays_kernels_give_the_same_numbers(step):
    c = case([(100, 5, None), (70, 5, None), (9, 5, None)], kv=4, group=1, dim=64, dtype=torch.bfloat16, device="cuda",
             max_len=128, poison=0.0)
    out = step(c.batch, c.cache).attend(0, c.query, c.scale)
    torch.testing.assert_close(out.double().cpu(), c.expected, rtol=3e-2, atol=3e-2)


def test_the_table_is_whole(monkeypatch):
    monkeypatch.setattr(strategies, "measured", lambda device, dtype, kv, group, dim, threads:
                        typical(dtype, Heads(kv, group), dim))
    monkeypatch.setattr(calibrate, "WEIGHTS", 1 << 20)
    monkeypatch.setattr(verify_attention, "SKEWS", ("alpaca", "one long"))
    report = verify_attention.run(Namespace(device="cpu", batch=[3], repeats=2))
    assert len(report.rows) == len(verify_attention.SKEWS) * len(verify_attention.DRAFTS)
    for row in report.rows:
        times = [row[f"{name}_us".replace("-", "_")] for name in STRATEGIES]
        assert min(times) > 0 and row["best"] in STRATEGIES and row["best_over_auto"] > 0
        assert row["touched"] >= row["keys"]
    assert [bar.target for bar in report.bars] == ["<= 1.1", ">= 1.5", ">= 1.5", ">= 0.97"]
    assert report.bars[1].value is None, "batch 16 was not measured"


def test_no_cuda_is_said():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ValueError, match="no CUDA device"):
        verify_attention.run(Namespace(device="cuda", batch=[3], repeats=1))
