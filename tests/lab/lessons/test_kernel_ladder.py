"""The ladder's rungs pass their checks, and the checks find the mistakes that a reader is likely to make."""

from __future__ import annotations

import pytest
import torch

from spin_core.lab.lessons.l6_verify_kernel import checks

triton = pytest.importorskip("triton")
ladder = pytest.importorskip("spin_core.lab.lessons.l6_verify_kernel.ladder")
import triton.language as tl  # noqa: E402

pytestmark = pytest.mark.usefixtures("patched_once")
CHECKS = {"logsumexp": checks.check_logsumexp, "accept": checks.check_accept, "replace": checks.check_replace,
          "ragged": checks.check_ragged, "in_place": checks.check_in_place}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> str:
    if request.param == "cpu" and not triton.knobs.runtime.interpret:
        pytest.skip("the kernels are compiled in this process")
    return request.param


@pytest.mark.parametrize("rung", CHECKS)
def test_rungs_pass_their_checks(device, rung):
    answer = CHECKS[rung](getattr(ladder, rung), device)
    assert answer.status == "right", answer.message


@triton.jit
def forgetful(LOGITS, OUT, vocab, BLOCK: tl.constexpr):
    """Forgets to rescale the sum when the largest logit grows."""
    row = tl.program_id(0)
    peak = -float("inf")
    total = 0.0
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(LOGITS + row * vocab + columns, mask=columns < vocab, other=-float("inf"))
        peak = tl.maximum(peak, tl.max(x))
        total += tl.sum(tl.exp(x - peak))
    tl.store(OUT + row, peak + tl.log(total))


def without_rescaling(logits):
    out = torch.empty(len(logits))
    forgetful[len(logits),](logits, out, logits.shape[1], BLOCK=128)
    return out


def padded(*args):
    """Judges every row and so trips over the unneeded ones."""
    logits = args[0]
    accepted, last = ladder.ragged(*args)
    return accepted, torch.where(logits.isnan().any(), 0, last)


def never_behind(*args):
    ladder.in_place(*args)
    args[7].fill_(0)        # lengths


def test_checks_find_mistakes():
    wrong = {"logsumexp": [without_rescaling, lambda x: x.exp().sum(-1).log()],
             "accept": [lambda logits, tokens, q, *rest: ladder.accept(q.log(), tokens, logits.softmax(-1), *rest)],
             "replace": [lambda logits, q, *rest: ladder.replace(logits, 0 * q, *rest)],
             "ragged": [padded], "in_place": [never_behind]}
    for rung, mistakes in wrong.items():
        for mistake in mistakes:
            assert CHECKS[rung](mistake).status == "wrong", (rung, mistake)
    assert checks.check_logsumexp(lambda x: ...).status == "open"
    assert "raised ZeroDivisionError" in checks.check_accept(lambda *_: 1 / 0).message
