"""The verify kernel against what memory allows and against others, on a GPU.

The floor is the time in which the device copies as many bytes as the needed rows hold
(:func:`.verify_cases.needed_bytes`). Others want probabilities or their logarithms, so their softmax counts as
theirs. Inputs are rotated over several times what a cache holds, and what can be captured is timed as a CUDA
graph: the device's time alone.
"""

import importlib
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from spin_core.decompose.calibrate import timed
from spin_core.lab.bench import Bar, Report
from spin_core.lab.bench.timing import interleaved
from spin_core.lab.bench.verify_cases import GAMMA, case, needed_bytes
from spin_core.verify import chain

VOCABULARIES = (32000, 49152, 128256)
BATCHES = (1, 8, 64)
PROMISED = (128256, 64)     # vocabulary and batch of the bars
CACHE_BYTES = 256e6         # inputs are rotated over at least this much


def run(device: str, vocabularies: Sequence[int], batches: Sequence[int], repeats: int,
        left: Callable[[], float] = lambda: float("inf")) -> Report:
    """One row for each vocabulary, batch, type of logits and kind of drafts, the promised case first, as long
    as ``left()`` seconds are positive. On a CPU, where the kernel is interpreted, the times mean nothing."""
    bandwidth = copy_bandwidth(device)
    report = Report("verify", [], notes=[f"copy bandwidth {bandwidth / 1e12:.2f} TB/s, bytes read plus written"])
    cases = [(vocab, batch, dtype, accept_all) for vocab in vocabularies for batch in batches
             for dtype in (torch.bfloat16, torch.float32) for accept_all in (True, False)]
    cases.sort(key=lambda c: (c[:2] != PROMISED, -c[0] * c[1]))
    for one in report.within(left, cases):
        row = _row(device, *one, repeats, bandwidth, report.notes)
        report.rows.append(row)
        if (*one[:2], one[3]) == (*PROMISED, True):
            report.bars.append(Bar(f"share of the copy bandwidth, {row['dtype']}, V 128256, batch 64, gamma 4",
                                   row["share_of_floor"], ">= 0.8"))
            others = [v for k, v in row.items() if k.endswith("_us") and k not in ("kernel_us", "floor_us")]
            report.bars.append(Bar(f"fastest other over the kernel, {row['dtype']}, likewise",
                                   min(others) / row["kernel_us"] if others else None, ">= 1.0"))
    return report


def _row(device: str, vocab: int, batch: int, dtype: torch.dtype, accept_all: bool, repeats: int, bandwidth: float,
         notes: list[str]) -> dict:
    from spin_core.verify import kernel

    sets = _sets(batch, vocab, dtype, accept_all, device)
    verdicts = [kernel.verify_chain(*inputs, GAMMA) for inputs in sets]
    floor = statistics.mean(needed_bytes(inputs[0], inputs[1], verdict)
                            for inputs, verdict in zip(sets, verdicts)) / bandwidth
    expected = [chain.verify_chain(*inputs) for inputs in sets]
    equal = sum(int((v.tokens[:, :e.tokens.shape[1]] == e.tokens).all(-1).sum())
                for v, e in zip(verdicts, expected)) / (len(sets) * batch)
    ours = _seconds(lambda i: kernel.verify_chain(*sets[i], GAMMA), len(sets), repeats, device)
    row = {"vocab": vocab, "batch": batch, "dtype": str(dtype).removeprefix("torch."),
           "drafts": "all accepted" if accept_all else "sampled", "kernel_us": ours * 1e6,
           "floor_us": floor * 1e6, "share_of_floor": floor / ours, "equal_to_reference": equal}
    for name, call in _others(sets, device, notes):
        try:
            row[f"{name}_us"] = _seconds(call, len(sets), repeats, device, captured=name != "reference") * 1e6
        except Exception as error:      # another's kernel: any failure of its own is its result
            _note(notes, f"{name} did not run here: {type(error).__name__}: {str(error)[:120]}")
    return row


# ---- the other ways

def dense(logits: Tensor, q: Tensor, tokens: Tensor) -> Tensor:
    """The textbook rule on a batch of equal drafts, in shapes that never change: what torch.compile can make
    most of.

    ``logits [B, g + 1, V]``, ``q [B, g, V]``, ``tokens [B, g]`` -> ``[B]`` accepted, ``[B]`` last tokens.
    Noise from torch's own generator; every row is read, whether its request still needs it or not.
    """
    p = logits.float().softmax(-1)
    chance = torch.rand(tokens.shape, device=tokens.device)
    at = tokens.unsqueeze(-1)
    accept = chance * q.gather(-1, at).squeeze(-1) < p[:, :-1].gather(-1, at).squeeze(-1)
    accepted = accept.long().cumprod(-1).sum(-1)
    row = accepted.view(-1, 1, 1).expand(-1, 1, p.shape[-1])
    distribution = p.gather(1, row).squeeze(1)
    proposed = torch.cat([q, torch.zeros_like(q[:, :1])], 1).gather(1, row).squeeze(1)
    weights = (distribution - proposed).clamp(min=0)
    weights = torch.where(weights.amax(-1, keepdim=True) > 0, weights, distribution)
    return accepted, (weights / torch.empty_like(weights).exponential_()).argmax(-1)


def _others(sets: list, device: str, notes: list[str]) -> list[tuple[str, Callable[[int], object]]]:
    """The other ways to verify the same inputs, as far as they are installed."""
    shaped = [(inputs[0].view(len(inputs[2]), GAMMA + 1, -1), inputs[1].probs.view(len(inputs[2]), GAMMA, -1),
               inputs[1].tokens.view(-1, GAMMA)) for inputs in sets]
    ways = [("reference", lambda i: chain.verify_chain(*sets[i])), ("dense_eager", lambda i: dense(*shaped[i]))]
    if device != "cpu":
        compiled = torch.compile(dense)
        ways.append(("dense_compiled", lambda i: compiled(*shaped[i])))
    _note(notes, "reference: spin_core's torch code with its counter-based noise; dense: the textbook rule in torch, "
                 "every row, torch's noise")
    sampling = _optional("flashinfer.sampling", notes)
    if sampling:
        ids = [tokens.int() for _, _, tokens in shaped]
        ways.append(("flashinfer", lambda i: sampling.chain_speculative_sampling(
            shaped[i][1], ids[i], shaped[i][0].float().softmax(-1))))
    theirs = _optional("flashspec.kernels.verify_kernel", notes)
    if theirs:
        log_q = [q.log() for _, q, _ in shaped]
        u = torch.rand(shaped[0][2].shape, device=device)
        ways.append(("flashspec", lambda i: theirs.verify_tokens(
            log_q[i], shaped[i][0][:, :GAMMA].float().log_softmax(-1), u, shaped[i][2])))
        _note(notes, "flashspec: its kernel makes the accept test alone, without residual or bonus draw")
    return ways


def _optional(name: str, notes: list[str]):
    try:
        return importlib.import_module(name)
    except ImportError:
        _note(notes, f"{name.split('.')[0]} is not installed")
        return None


def _note(notes: list[str], text: str) -> None:
    if text not in notes:
        notes.append(text)


# ---- clocks

def _seconds(call: Callable[[int], object], inputs: int, repeats: int, device: str, captured: bool = True) -> float:
    """Median seconds of one call, out of a captured graph: the device's time; call ``i`` works on input set i.
    ``captured`` False: for what cannot be captured, because it asks the device something on its way."""
    calls = [partial(call, i) for i in range(inputs)]
    if captured or device == "cpu":
        return float(np.median(timed([calls], torch.device(device), 1 if device == "cpu" else repeats)))

    def eagerly() -> None:
        for one in calls:
            one()
        torch.cuda.synchronize()

    return interleaved({"": eagerly}, max(3, repeats // 5))[""] / inputs


def copy_bandwidth(device: str, repeats: int = 20) -> float:
    """Bytes per second, read and written, of a large copy on the device."""
    source = torch.randn((256 if device != "cpu" else 1) * 2**20, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _seconds(lambda i: target.copy_(source), 1, repeats, device)


def _sets(batch: int, vocab: int, dtype: torch.dtype, accept_all: bool, device: str) -> list:
    """As many sets of inputs as it takes to leave no cache a chance, at least two; on a CPU, not timed, one."""
    size = batch * (GAMMA + 1) * vocab * dtype.itemsize
    count = 1 if device == "cpu" else max(2, min(32, int(CACHE_BYTES // size) + 1))
    return [case(batch, vocab, dtype, device, seed, accept_all) for seed in range(count)]
