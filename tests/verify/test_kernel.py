"""The Triton kernel against the torch reference, token for token: in the interpreter on a CPU, compiled on a GPU."""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager

import pytest
import torch
from chain_cases import SAMPLED, as_lists, make_batch, one_by_one, params_list
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from spin_core import verify
from spin_core.draft.base import Draft
from spin_core.randomness import FINAL, GROUP, RESIDUAL, philox
from spin_core.request import SamplingParams
from spin_core.sampling import SamplingBatch, probabilities
from spin_core.verify import chain

triton = pytest.importorskip("triton")
kernel = pytest.importorskip("spin_core.verify.kernel")
from spin_core.lab.lessons.l6_verify_kernel.measure import counted  # noqa: E402
from spin_core.verify import kernel_filters, kernel_noise, kernel_rows  # noqa: E402
import triton.language as tl  # noqa: E402

INTERPRETED = triton.knobs.runtime.interpret
pytestmark = pytest.mark.usefixtures("patched_once")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], scope="module")
def device(request) -> str:
    if request.param == "cpu" and not INTERPRETED:
        pytest.skip("the kernel is compiled in this process")
    return request.param


@contextmanager
def poisoned():
    """Memory that nothing has written holds NaN or the largest integer."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def moved(draft: Draft, device) -> Draft:
    columns = (draft.tokens, draft.cu, draft.probs, draft.prob_row, draft.ids)
    return Draft(*(None if x is None else x.to(device) for x in columns))


def both(logits: Tensor, draft: Draft, params: list[SamplingParams], device: str, position: list[int] | None = None,
         **sizes) -> tuple[chain.Verdict, chain.Verdict]:
    """The reference's verdict, made on the CPU, and the kernel's."""
    position = torch.tensor([10 + b for b in range(len(params))] if position is None else position, dtype=torch.int64)
    sampling = SamplingBatch.from_params(params)
    expected = chain.verify_chain(logits, draft, sampling, position)
    with poisoned():
        got = kernel.verify_chain(logits.to(device), moved(draft, device), SamplingBatch.from_params(params, device),
                                  position.to(device), **sizes)
    return expected, got


def check(*args, **sizes) -> chain.Verdict:
    expected, got = both(*args, **sizes)
    for name in ("num_accepted", "tokens", "failed"):
        want, have = getattr(expected, name), getattr(got, name).cpu()
        assert want.dtype == have.dtype and torch.equal(want, have), (name, want, have)
    return expected


SMALL = dict(block=128, tiles=1, drawn=64)       # several chunks, and several races in each, of a small vocabulary
WIDE = dict(block=65536, tiles=1, drawn=65536)  # few steps: what an interpreter is quick at


@given(params_list.map(lambda params: params[:4]), st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_kernel_equals_the_reference(device, params, data):
    """Ragged; greedy beside sampling, one-hot beside sampled drafts; filters; whole or subset vocabulary; bad rows."""
    counts = [data.draw(st.integers(0, 4)) for _ in params]
    vocab, dtype = data.draw(st.sampled_from([2, 7, 70, 300])), data.draw(st.sampled_from(kernel.DTYPES))
    logits, draft = make_batch(counts, vocab, data.draw(st.integers(0, 10**6)), data.draw(st.booleans()), dtype)
    for trouble in (torch.nan, torch.inf, -torch.inf):
        for row in data.draw(st.lists(st.integers(0, max(0, len(logits) - 1)), max_size=1 if params else 0)):
            logits[row, slice(None) if trouble < 0 else vocab - 1] = trouble
    position = [data.draw(st.sampled_from([0, 17, 2**31 - 100])) for _ in params]
    expected = check(logits, draft, params, device, position, **SMALL)
    assert as_lists(expected) == one_by_one(logits, draft, params, position)


def mixed_params(batch: int, filters: bool = True) -> list[SamplingParams]:
    return [SamplingParams(temperature=(0.0, 1.0, 0.7)[b % 3], top_k=20 * (filters and b % 8 == 2),
                           seed=b + 2**40 * (b % 2),
                           top_p=0.9 if filters and b % 8 == 4 else 1.0) for b in range(batch)]


@pytest.mark.parametrize("vocab, batch, dtype, sizes", [
    (111, 1, torch.float32, {}), (111, 7, torch.bfloat16, SMALL), (111, 64, torch.float16, {}),
    (111, 99, torch.float32, dict(drawn=128)), (4097, 7, torch.float16, dict(block=1024, tiles=2)),
    (4097, 7, torch.bfloat16, {}), (32000, 3, torch.bfloat16, WIDE), (49152, 3, torch.float32, {}),
    (49152, 2, torch.float16, WIDE), (128256, 1, torch.float32, WIDE), (128256, 3, torch.bfloat16, WIDE)])
def test_real_vocabularies_and_batches(device, vocab, batch, dtype, sizes):
    """gamma 0, 1, 4 and 8 side by side."""
    counts = [(4, 0, 8, 1)[b % 4] for b in range(batch)]
    logits, draft = make_batch(counts, vocab, seed=vocab + batch, dtype=dtype, subset=batch == 3)
    check(logits, draft, mixed_params(batch, filters=batch < 64 and vocab < 30000 or batch == 3), device, **sizes)


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [111, 4097, 32000, 49152, 128256])
@pytest.mark.parametrize("batch", [1, 7, 64, 99])
@pytest.mark.parametrize("dtype", kernel.DTYPES)
def test_all_vocabularies_and_batches_on_a_gpu(vocab, batch, dtype):
    """Rounding differs between the devices, so a near tie may fall the other way, once in many thousands."""
    counts = [(4, 0, 8, 1)[b % 4] for b in range(batch)]
    for seed in range(3):
        logits, draft = make_batch(counts, vocab, seed, dtype=dtype, subset=seed == 2)
        expected, got = both(logits, draft, mixed_params(batch), "cuda")
        differ = (expected.tokens != got.tokens.cpu()).any(-1)
        assert int(differ.sum()) <= 1
        assert torch.equal(expected.failed, got.failed.cpu())


def test_nothing_finite_beside_the_mask(device):
    """-inf nearly everywhere, so that whole chunks of a row are empty, the first ones too."""
    logits, draft = make_batch([3] * 6, 400, seed=3)
    keep = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0)) < 0.02
    keep[:, 390] = True
    check(logits.masked_fill(~keep, -torch.inf), draft, [SAMPLED.with_(seed=b, top_k=b % 2) for b in range(6)], device,
          **SMALL)


@pytest.mark.parametrize("temperature", [1e-46, 1e-3, 100.0, 1e39])
def test_extreme_temperatures(device, temperature):
    logits, draft = make_batch([2] * 6, 250, seed=5)
    logits[:, 20] = logits[:, 230] = logits.amax(-1)     # a tie for the largest
    params = [SamplingParams(temperature, seed=b, min_p=0.3 * (b % 2)) for b in range(6)]
    check(logits, draft, params, device, **SMALL)


def test_a_residual_without_mass_falls_back_to_p(device):
    """q = 2 p rejects half of the drafts and leaves nothing of p."""
    batch = 12
    logits = torch.tensor([0.4, 0.6, 0.0, 0.0]).log().repeat(2 * batch, 1)
    draft = Draft(torch.ones(batch, dtype=torch.int64), torch.arange(batch + 1), 2 * logits[:1].softmax(-1),
                  torch.zeros(batch, dtype=torch.int64))
    verdict = check(logits, draft, [SAMPLED.with_(seed=b) for b in range(batch)], device)
    assert 0 < int(verdict.num_accepted.sum()) < batch


def test_a_drafter_without_a_distribution_costs_speed_but_not_the_distribution(device):
    logits, draft = make_batch([1] * 4, 240, seed=2)
    for bad in (0, 239):
        q = logits[:1].softmax(-1).clone()
        q[0, bad] = torch.nan
        broken = Draft(torch.full((4,), bad), draft.cu, q, torch.zeros(4, dtype=torch.int64))
        verdict = check(logits.clamp(min=-5), broken, [SAMPLED.with_(seed=b) for b in range(4)], device, **SMALL)
        assert verdict.num_accepted.sum() == 0


def test_rows_and_columns_in_other_strides(device):
    logits, draft = make_batch([3, 0, 2], 240, seed=6)
    wide = torch.full((2 * len(logits), 255), torch.nan)
    wide[::2, :240] = logits
    draft.probs = draft.probs.t().contiguous().t()
    for view in (wide[::2, :240], logits.t().contiguous().t()):
        check(view, draft, mixed_params(3), device, **SMALL)


def test_a_known_bound_of_the_draft_lengths(device):
    logits, draft = make_batch([1, 2, 0], 20, seed=6)
    expected, got = both(logits, draft, mixed_params(3), device, max_draft=5)
    assert got.tokens.shape == (3, 6)
    assert torch.equal(got.tokens[:, :3].cpu(), expected.tokens) and (got.tokens[:, 3:] == -1).all()


def test_no_requests_and_shapes_that_do_not_fit(device):
    verdict = kernel.verify_chain(torch.zeros(0, 9, device=device), Draft.empty(0, device),
                                  SamplingBatch.from_params([], device), torch.zeros(0, dtype=torch.int64))
    assert verdict.tokens.shape == (0, 1) and verdict.failed.dtype == torch.bool
    logits, draft = make_batch([3, 2], 9, seed=8)
    sampling, position = SamplingBatch.from_params([SAMPLED] * 2), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"5 drafted tokens of 2 requests need 7 rows .* got \(6, 9\)"):
        kernel.verify_chain(logits[1:], draft, sampling, position)
    with pytest.raises(ValueError, match="2 sampling rows, 2 drafts, 1 positions"):
        kernel.verify_chain(logits, draft, sampling, position[1:])
    with pytest.raises(ValueError, match="fp32, bf16 or fp16, not torch.float64"):
        kernel.verify_chain(logits.double(), draft, sampling, position)


# ---- what is read

def behind(logits: Tensor, draft: Draft, verdict: chain.Verdict) -> Tensor:
    """``[N + B]`` bool: rows behind a request's first rejection."""
    request = torch.arange(len(verdict.num_accepted)).repeat_interleave(draft.counts + 1)
    return torch.arange(len(logits)) - draft.cu[request] - request > verdict.num_accepted[request]


def test_rows_behind_the_first_rejection_do_not_matter(device):
    logits, draft = make_batch([8, 4, 1, 8, 8, 4], 260, seed=9)
    params = mixed_params(6)
    verdict = check(logits, draft, params, device, **SMALL)
    unread = behind(logits, draft, verdict)
    assert unread.sum() > 5
    again = check(logits.masked_fill(unread.unsqueeze(-1), torch.nan), draft, params, device, **SMALL)
    assert torch.equal(verdict.tokens, again.tokens) and not again.failed.any()


@pytest.mark.skipif(not INTERPRETED, reason="loads are counted in the interpreter")
@pytest.mark.parametrize("kind", ["greedy", "sampled", "one-hot"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_read(kind, dtype):
    """Every needed row once; the row of a rejected draft that was sampled once more, for its residual, and of q that
    row alone; else gathers: of each tested token, and of the group of columns (the last one has 13) that won a draw."""
    counts, vocab = [4, 8, 0, 1, 4, 8, 4], 333
    logits, draft = make_batch(counts, vocab, seed=11, dtype=dtype)
    if kind == "one-hot":
        draft = Draft(draft.tokens, draft.cu)
    params = [(SamplingParams() if kind == "greedy" else SAMPLED).with_(seed=b) for b in range(7)]
    distributions = torch.empty(0) if draft.probs is None else draft.probs
    with counted(logits, distributions) as reads:
        verdict = kernel.verify_chain(logits, draft, SamplingBatch.from_params(params), torch.arange(7), **SMALL)
    accepted = verdict.num_accepted
    request = torch.arange(7).repeat_interleave(draft.counts + 1)
    step = torch.arange(len(logits)) - draft.cu[request] - request
    expected = (step <= accepted[request]).long()
    gathers = torch.zeros(len(logits), dtype=torch.int64)
    rejected = (step == accepted[request]) & (step < draft.counts[request])
    if kind == "sampled":
        soft = torch.zeros(len(logits), dtype=torch.bool)
        soft[step < draft.counts[request]] = draft.prob_row >= 0
        assert (rejected & soft).sum() >= 2 and (rejected & ~soft).sum() >= 1
        expected += rejected & soft
    if kind != "greedy":
        gathers += (step <= accepted[request]) & (step < draft.counts[request])
    assert rejected.sum() >= 3
    last = step == accepted[request]
    group = verdict.tokens.gather(1, accepted[:, None])[request, 0] // GROUP
    size = torch.where(group == vocab // GROUP, vocab % GROUP, GROUP)
    if kind != "greedy":
        gathers += last * size
    assert torch.equal(reads[0].sum(-1), expected * vocab + gathers)
    if kind == "sampled":
        tested = (step <= accepted[request]) & (step < draft.counts[request])
        row = (torch.arange(len(logits)) - request)[tested]
        distribution, again = draft.prob_row[row], (rejected * (vocab + size))[tested]
        want = torch.zeros(len(draft.probs), dtype=torch.int64)
        want.index_add_(0, distribution[distribution >= 0], 1 + again[distribution >= 0])
        assert torch.equal(reads[1].sum(-1), want)


# ---- filters

@triton.jit
def _floors(LOGITS, TEMPERATURE, TOP_K, TOP_P, MIN_P, PEAK, TOTAL, OUT, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    scale = 1.4426950408889634 / tl.load(TEMPERATURE + row).to(tl.float32)
    floor, total = kernel_filters.filtered(LOGITS + row * vocab, vocab, tl.load(PEAK + row), tl.load(TOTAL + row),
                                           scale, tl.load(TOP_K + row), tl.load(TOP_P + row).to(tl.float32),
                                           tl.load(MIN_P + row).to(tl.float32), BLOCK)
    tl.store(OUT + row * 2, floor)
    tl.store(OUT + row * 2 + 1, total)


@pytest.mark.parametrize("ties", [False, True])
def test_filters_keep_the_reference_s_tokens(device, ties):
    """Every combination of filters, with ties at the floor and with everything tied."""
    cases = [(k, p, m) for k in (0, 1, 5, 100) for p in (1.0, 0.3, 0.9) for m in (0.0, 0.05, 1.0)]
    logits = 3 * torch.randn(len(cases), 40, generator=torch.Generator().manual_seed(5))
    logits[:, 7] = -torch.inf
    if ties:
        logits = logits.round()
        logits[::9] = 2.0
    params = [SamplingParams(temperature=0.5 + i % 3, top_k=k, top_p=p, min_p=m) for i, (k, p, m) in enumerate(cases)]
    sampling = SamplingBatch.from_params(params)
    distribution = probabilities(logits, sampling)
    peak = logits.amax(-1, keepdim=True)
    weight = ((logits - peak) / sampling.temperature.float().unsqueeze(-1)).exp()
    on = SamplingBatch.from_params(params, device)
    out = torch.full((len(cases), 2), torch.nan, device=device)
    _floors[len(cases),](logits.to(device), on.temperature, on.top_k, on.top_p, on.min_p, peak.to(device),
                         weight.sum(-1).to(device), out, 40, BLOCK=32)
    floor, total = out.cpu().unbind(-1)
    kept = (logits >= floor.unsqueeze(-1)) & logits.isfinite()
    assert torch.equal(kept, distribution > 0)
    torch.testing.assert_close(weight * kept / total.unsqueeze(-1), distribution, rtol=1e-5, atol=1e-7)


# ---- the noise

@triton.jit
def _noise(SEED, POSITION, OUT, first, BLOCK: tl.constexpr):
    entrant = tl.arange(0, BLOCK)
    tl.store(OUT + entrant,
             kernel_noise.inverse_exponential(tl.load(SEED), tl.load(POSITION), first + entrant, kernel_rows._FINAL))


def test_noise_is_the_races_and_precise_where_races_are_won(device):
    """1 / E of 2^17 entrants from number 4096 on, against float64: a plain log(1 - x) is 0.4 % off at the fast ones."""
    seed, position, first, columns = torch.tensor([2**62 + 12345]), torch.tensor([2**31 + 5]), 4096, 2**17
    out = torch.full((columns,), torch.nan, device=device)
    _noise[1,](seed.to(device), position.to(device), out, first, BLOCK=columns if device == "cpu" else 4096)
    words = philox(FINAL + torch.arange(columns // 4) + first // 4, position, RESIDUAL, 0, seed)
    x = (torch.stack(words, -1).flatten().float() + 0.5) * 2.0**-32         # rounded as the race rounds it
    exact = -1 / torch.log1p(-x.clamp(max=1 - 2.0**-24).double())
    checked = columns if device == "cpu" else 4096
    torch.testing.assert_close(out[:checked].cpu().double(), exact[:checked], rtol=1e-6, atol=0)


# ---- the queue

@pytest.mark.skipif(not INTERPRETED, reason="the order of atomic operations is chosen in the interpreter")
@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_programs_gives_the_same_verdict(monkeypatch, seed):
    """Programs run in threads, and before every atomic operation chance says whose turn it is."""
    from triton.runtime import interpreter

    turn, choice = threading.Condition(), random.Random(seed)
    alive: list[int] = []
    running = [0]
    names: dict[int, int] = {}
    plain = interpreter.InterpreterBuilder.create_atomic_rmw

    def give_turn() -> None:
        running[0] = choice.choice(alive) if alive else -1
        turn.notify_all()

    def wait_turn(name: int) -> None:
        while running[0] != name:
            assert turn.wait(60), "no program gets on"

    def atomic(self, *args):
        name = names[threading.get_ident()]
        give_turn()
        wait_turn(name)
        return plain(self, *args)

    class Shuffled:
        """Launches like the kernel, one thread for each program."""

        def __getitem__(self, grid):
            def launch(*args, **options):
                errors = []

                def program(name: int) -> None:
                    with turn:                  # held except while waiting: one program computes at a time
                        names[threading.get_ident()] = name
                        wait_turn(name)
                        try:
                            original[1,](*args, **options)
                        except BaseException as error:
                            errors.append(error)
                        alive.remove(name)
                        give_turn()

                alive[:] = range(grid[0])
                running[0] = -1
                threads = [threading.Thread(target=program, args=(name,)) for name in alive]
                for thread in threads:
                    thread.start()
                with turn:
                    give_turn()
                for thread in threads:
                    thread.join()
                assert not errors, errors
            return launch

    original = kernel._verify
    monkeypatch.setattr(kernel, "_verify", Shuffled())
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_atomic_rmw", atomic)
    logits, draft = make_batch([4, 0, 2, 3], 290, seed=seed, subset=seed % 2 == 1)
    logits[2, 3] = torch.nan
    check(logits, draft, [SAMPLED.with_(seed=seed), SAMPLED, SamplingParams(), SAMPLED.with_(top_k=4)], "cpu",
          programs=(1, 2, 3, 5, 8, 12)[seed], **SMALL)


@pytest.mark.gpu
def test_at_most_two_launches_and_no_wait_for_the_device():
    logits, draft = make_batch([4] * 16, 4097, seed=1, dtype=torch.bfloat16)
    logits, draft, params = logits.cuda(), moved(draft, "cuda"), mixed_params(16)
    sampling, position = SamplingBatch.from_params(params, "cuda"), torch.arange(16, device="cuda")
    verify.verify_chain(logits, draft, sampling, position, max_draft=4)       # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            verify.verify_chain(logits, draft, sampling, position, max_draft=4)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    launched = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert len(launched) <= 2, launched


# ---- the distribution, and who is asked

def p_values(draws: int, device: str) -> tuple[float, float]:
    """Chi-square of first emitted tokens against p, and of the drafted tokens: the same test on the wrong
    distribution."""
    p, q = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0.1, 0.2, 0.3, 0.4])
    generator = torch.Generator().manual_seed(0)
    drafted = q.multinomial(draws, replacement=True, generator=generator)
    draft = Draft(drafted, torch.arange(draws + 1), q.unsqueeze(0), torch.zeros(draws, dtype=torch.int64))
    params = [SAMPLED.with_(seed=b) for b in range(draws)]
    verdict = kernel.verify_chain(p.log().repeat(2 * draws, 1).to(device), moved(draft, device),
                                  SamplingBatch.from_params(params, device), torch.full((draws,), 5, device=device))
    expected = p.double().div(p.double().sum()).mul(draws).numpy()
    return tuple(stats.chisquare(x.bincount(minlength=4).numpy(), expected).pvalue
                 for x in (verdict.tokens[:, 0].cpu(), drafted))


def test_draws_follow_the_distribution(device):
    follows, wrong = p_values(70 if device == "cpu" else 200_000, device)
    assert follows > 1e-4 and wrong < 1e-10


@pytest.mark.parametrize("max_draft", [None, 4])
def test_a_cpu_asks_the_reference(monkeypatch, max_draft):
    monkeypatch.setattr(kernel, "verify_chain", None)
    logits, draft = make_batch([1, 2], 20, seed=6)
    sampling, position = SamplingBatch.from_params(mixed_params(2)), torch.arange(2)
    verdict = verify.verify_chain(logits, draft, sampling, position, max_draft)
    expected = chain.verify_chain(logits, draft, sampling, position)
    assert torch.equal(verdict.tokens[:, :3], expected.tokens)
    assert verdict.tokens.shape == (2, 3 if max_draft is None else 5) and (verdict.tokens[:, 3:] == -1).all()
