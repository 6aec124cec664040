"""The verifiers' benchmark: its loops give the reference's tokens, and its floor counts what has to be read."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest
import torch
from chain_cases import as_lists
from scipy import stats

from spin_core.__main__ import main
from spin_core.lab.bench import Report
from spin_core.lab.bench import gpu, verify_cases, verify_gpu
from spin_core.lab.bench import verify as bench
from spin_core.draft.base import Draft
from spin_core.verify import Verdict, chain


def test_the_position_loop_gives_the_references_tokens():
    inputs = verify_cases.case(6, 50, torch.float32, "cpu", seed=1)
    verdict = chain.verify_chain(*inputs)
    assert as_lists(verdict) == verify_cases.position_loop(*inputs)
    assert 0 < int(verdict.num_accepted.sum()) < 6 * verify_cases.GAMMA
    assert [len(text) for text in verify_cases.textbook_loop(*inputs[:3])] != [1] * 6


def test_drafts_made_to_be_accepted_are():
    verdict = chain.verify_chain(*verify_cases.case(6, 50, torch.float32, "cpu", 1, accept_all=True))
    assert (verdict.num_accepted == verify_cases.GAMMA).all()


def test_the_floor_by_hand():
    """Rows of 10 logits of 2 bytes; one request rejects its second draft, sampled, one its first, one-hot; one none."""
    draft = Draft(torch.zeros(6, dtype=torch.int64), torch.tensor([0, 2, 4, 6]), torch.zeros(2, 10),
                  torch.tensor([-1, 0, -1, 1, -1, -1]))
    verdict = Verdict(torch.tensor([1, 0, 2]), torch.empty(0), torch.empty(0))
    assert verify_cases.needed_bytes(torch.zeros(9, 10, dtype=torch.bfloat16), draft, verdict) == (2 + 1 + 3) * 20 + 40


def arguments(**others) -> Namespace:
    return Namespace(**{"device": "cpu", "vocab": [300], "batch": [2], "repeats": 1} | others)


def test_on_a_cpu():
    report = bench.run(arguments())
    assert report.rows[0]["same_tokens"] and not report.bars
    assert [bar.target for bar in bench.run(arguments(vocab=[49152], batch=[8])).bars] == [">= 2.0"]


@pytest.fixture
def interpreted(patched_once):
    triton = pytest.importorskip("triton")
    if not triton.knobs.runtime.interpret:
        pytest.skip("the kernel is compiled in this process")


def test_the_gpu_part_as_far_as_a_cpu_can_run_it(interpreted, monkeypatch):
    """The kernel in the interpreter, and a memory of 1 TB/s."""
    monkeypatch.setattr(verify_gpu, "copy_bandwidth", lambda device: 1e12)
    report = verify_gpu.run("cpu", [300], [2], 1)
    assert [row["drafts"] for row in report.rows] == ["all accepted", "sampled"] * 2
    for row in report.rows:
        assert row["equal_to_reference"] == 1 and row["reference_us"] > 0 and 0 < row["floor_us"]
        assert row["dense_eager_us"] > 0 and row["share_of_floor"] == pytest.approx(row["floor_us"] / row["kernel_us"])
    assert report.rows[0]["floor_us"] == pytest.approx(2 * 5 * 300 * 2 / 1e12 * 1e6)


def test_the_promised_case_comes_first_and_has_its_bars(interpreted, monkeypatch):
    """And what no time is left for is named."""
    row = {"kernel_us": 10.0, "floor_us": 9.0, "share_of_floor": 0.9, "dense_eager_us": 50.0, "reference_us": 99.0}
    seen, clock = [], iter([1, 1, 0])
    monkeypatch.setattr(verify_gpu, "_row", lambda device, *one: seen.append(one[:4]) or row | {"dtype": "bf16"})
    report = verify_gpu.run("cpu", verify_gpu.VOCABULARIES, verify_gpu.BATCHES, 1, lambda: next(clock))
    assert [one[:2] for one in seen] == [(128256, 64)] * 2
    assert [(bar.value, bar.target) for bar in report.bars] == [(0.9, ">= 0.8"), (5.0, ">= 1.0")]
    assert "out of time: 34 of 36 cases were left out" in report.notes


def test_the_dense_rule_follows_the_law():
    """One drafted token of the wrong distribution, and then: chi-square of what is emitted."""
    p, q, n = torch.tensor([0.5, 0.3, 0.15, 0.05]), torch.tensor([0.1, 0.2, 0.3, 0.4]), 50_000
    torch.manual_seed(0)
    drafted = q.multinomial(n, replacement=True)
    accepted, last = verify_gpu.dense(p.log().expand(n, 2, 4), q.expand(n, 1, 4), drafted[:, None])
    emitted = torch.where(accepted > 0, drafted, last)
    expected = (p.double() / p.double().sum() * n).numpy()
    assert stats.chisquare(emitted.bincount(minlength=4).numpy(), expected).pvalue > 1e-6
    assert stats.chisquare(drafted.bincount(minlength=4).numpy(), expected).pvalue < 1e-20


# ---- bench gpu

def test_the_command_says_when_there_is_no_gpu(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", "gpu", "--only", "verify"]) == 2
    assert "needs a CUDA device, and torch sees none" in capsys.readouterr().err
    assert main(["bench", "gpu", "--only", "verify", "nothing"]) == 2
    assert "unknown section nothing; known: verify, verify-attention" in capsys.readouterr().err


def test_a_dry_run_of_the_command(monkeypatch, tmp_path, capsys):
    """Smaller sizes, the same sections; what a row takes to make is tested above."""
    monkeypatch.setattr(verify_gpu, "_row", lambda device, *one: {"vocab": one[0], "batch": one[1], "drafts": one[3]})
    assert main(["bench", "gpu", "--only", "verify", "--dry-run", "--json", str(tmp_path / "gpu.json")]) == 0
    stored = json.loads((tmp_path / "gpu.json").read_text())
    assert [row["section"] for row in stored["rows"]] == ["verify"] * 4 and not stored["bars"]
    assert {(row["vocab"], row["batch"]) for row in stored["rows"]} == {(300, 2)}
    assert any("these times mean nothing" in note for note in stored["notes"])


def test_a_section_that_fails_leaves_the_others_their_turn(monkeypatch):
    def broken(settings):
        raise RuntimeError("no such instruction")

    def other(settings):
        assert 4 < settings.left() <= 10
        return Report("other", [{"a": 1}], notes=["b"])

    monkeypatch.setattr(gpu, "sections", lambda: {"broken": broken, "other": other})
    report = gpu.run(Namespace(only=None, budget_seconds=10, dry_run=True))
    assert report.rows == [{"section": "other", "a": 1}] and "other: b" in report.notes
    assert any("broken: FAILED: RuntimeError: no such instruction" in note for note in report.notes)
    assert [bar.holds for bar in report.bars] == [False]
