"""Chain verification from raw logits to emitted tokens: how fast, and how near to the bytes it has to read.

On a CPU the torch reference against loops that take one position after the other. On a GPU the fused kernel against
the floor that memory sets, the time in which the device copies as many bytes as the needed rows hold, and against the
reference and others' kernels. Those want probabilities or their logarithms, so their softmax counts as theirs.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from spin_core.bench import Bar, Report
from spin_core.bench.products import interleaved
from spin_core.draft.base import Draft
from spin_core.randomness import ACCEPT, RESIDUAL, race, uniform
from spin_core.request import SamplingParams
from spin_core.sampling import SamplingBatch, probabilities
from spin_core.verify import Verdict, chain

DESCRIPTION = "chain verification: the reference against loops on a CPU, the kernel against the memory's floor on a GPU"
VOCABULARIES = (32000, 49152, 128256)
BATCHES = (1, 8, 64)
GAMMA = 4
CACHE_BYTES = 256e6         # inputs are rotated over at least this much, several times what a cache holds


def add_arguments(parser) -> None:
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    parser.add_argument("--vocab", type=int, nargs="+", help="vocabularies (default: 49152; on a GPU 32000 49152 128256)")
    parser.add_argument("--batch", type=int, nargs="+", help="batch sizes (default: 8; on a GPU 1 8 64)")
    parser.add_argument("--repeats", type=int, default=25, help="interleaved repeats of every timing (default 25)")
    parser.add_argument("--tune", action="store_true", help="on a GPU: the kernel's block sizes instead")


def case(batch: int, vocab: int, dtype: torch.dtype, device, seed: int, accept_all: bool = False
         ) -> tuple[Tensor, Draft, SamplingBatch, Tensor]:
    """Sampled drafts of a drafter near the target. ``accept_all``: a q so small that every draft is accepted."""
    generator = torch.Generator(device).manual_seed(seed)

    def noise(rows: int) -> Tensor:
        return torch.randn(rows, vocab, generator=generator, device=device)

    scores = 3 * noise(batch * (GAMMA + 1))
    drafted = (scores + 0.9 * noise(len(scores))).view(batch, GAMMA + 1, vocab)[:, :GAMMA].flatten(0, 1)
    q = drafted.softmax(-1)
    tokens = q.multinomial(1, generator=generator).squeeze(-1)
    q = q * 1e-6 if accept_all else q
    params = [SamplingParams(temperature=1.0, seed=seed * 1000 + b) for b in range(batch)]
    draft = Draft(tokens, torch.arange(batch + 1, device=device) * GAMMA, q,
                  torch.arange(batch * GAMMA, device=device))
    return (scores.to(dtype), draft, SamplingBatch.from_params(params, device),
            torch.arange(batch, device=device) + 100)


def needed_bytes(logits: Tensor, draft: Draft, verdict: Verdict) -> int:
    """Rows of logits up to the deciding one, once, and the draft's law where a sampled token was rejected."""
    accepted, counts = verdict.num_accepted, draft.counts
    rejected = accepted < counts
    laws = int((draft.prob_row[(draft.cu[:-1] + accepted)[rejected]] >= 0).sum())
    rows = int((accepted + 1).sum())
    return rows * logits.shape[1] * logits.element_size() \
        + (laws * draft.probs.shape[1] * draft.probs.element_size() if laws else 0)


@torch.inference_mode()
def run(args) -> Report:
    if torch.device(args.device).type == "cpu":
        return _on_cpu(args)
    if not torch.cuda.is_available():
        raise ValueError(f"--device {args.device}, but torch sees no CUDA device")
    return _tuned(args) if args.tune else _on_gpu(args)


# ---- on a CPU

def position_loop(logits: Tensor, draft: Draft, sampling: SamplingBatch, position: Tensor) -> list[list[int]]:
    """The reference's verdict as a loop over requests and positions: a softmax each, until the first rejection."""
    texts = []
    for b in range(len(sampling)):
        mine, start, end = sampling.rows(slice(b, b + 1)), int(draft.cu[b]), int(draft.cu[b + 1])
        text: list[int] = []
        for i in range(start, end + 1):
            p = probabilities(logits[i + b:i + b + 1], mine)
            here = position[b:b + 1] + (i - start)
            q = torch.zeros_like(p)
            if i < end:
                q = draft.probs[draft.prob_row[i]].unsqueeze(0)
                token = int(draft.tokens[i])
                if chain.accepts(uniform(mine.seed, here, ACCEPT), p[:, token], q[:, token]):
                    text.append(token)
                    continue
            text.append(int(race(chain.residual(p, q), mine.seed, here, RESIDUAL)))
            break
        texts.append(text)
    return texts


def textbook_loop(logits: Tensor, draft: Draft, sampling: SamplingBatch) -> list[list[int]]:
    """The same algorithm with torch's own generator: its draws depend on what else the generator was used for."""
    texts = []
    for b in range(len(sampling)):
        start, end = int(draft.cu[b]), int(draft.cu[b + 1])
        text: list[int] = []
        for i in range(start, end + 1):
            rest = (logits[i + b].float() / float(sampling.temperature[b])).softmax(-1)
            if i < end:
                q, token = draft.probs[draft.prob_row[i]], int(draft.tokens[i])
                if float(torch.rand(())) * float(q[token]) < float(rest[token]):
                    text.append(token)
                    continue
                rest = (rest - q).clamp(min=0)
            text.append(int(rest.multinomial(1)))
            break
        texts.append(text)
    return texts


def _on_cpu(args) -> Report:
    rows, bars, notes = [], [], []
    for vocab in args.vocab or [49152]:
        for batch in args.batch or [8]:
            inputs = case(batch, vocab, torch.float32, "cpu", seed=0)
            verdict = chain.verify_chain(*inputs)
            same = [[t for t in row if t >= 0] for row in verdict.tokens.tolist()] == position_loop(*inputs)
            seconds = interleaved({"reference": lambda: chain.verify_chain(*inputs),
                                   "loop": lambda: position_loop(*inputs),
                                   "textbook": lambda: textbook_loop(*inputs[:3])}, args.repeats)
            rows.append({"vocab": vocab, "batch": batch, "reference_ms": seconds["reference"] * 1e3,
                         "textbook_loop_ms": seconds["textbook"] * 1e3, "position_loop_ms": seconds["loop"] * 1e3,
                         "textbook_over_reference": seconds["textbook"] / seconds["reference"],
                         "position_over_reference": seconds["loop"] / seconds["reference"],
                         "accepted_per_request": float(verdict.num_accepted.double().mean()), "same_tokens": same})
            if (vocab, batch) == (49152, 8):
                bars.append(Bar("reference over a textbook loop, batch 8, V 49152",
                                rows[-1]["textbook_over_reference"], ">= 2.0"))
    notes.append("textbook loop: for each position that is needed a softmax, a comparison, and torch.multinomial from "
                 "the residual; position loop: the same with the reference's own draws, hence the same tokens")
    return Report("verify", rows, bars, notes)


# ---- on a GPU

def _seconds(call: Callable[[int], object], inputs: int, repeats: int) -> float:
    """Median device seconds of one call out of a captured graph; call ``i`` works on input set i."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(inputs):
            call(i)
    return _replayed(graph.replay, repeats) / inputs


def _replayed(work: Callable[[], object], repeats: int) -> float:
    work()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def _eager_seconds(call: Callable[[int], object], inputs: int, repeats: int) -> float:
    """As :func:`_seconds` for what cannot be captured, because it asks the device something on its way."""
    return _replayed(lambda: [call(i) for i in range(inputs)], max(3, repeats // 5)) / inputs


def copy_bandwidth(repeats: int = 20) -> float:
    """Bytes per second, read and written, of a large copy on the device."""
    source = torch.randn(256 * 2**20, device="cuda")
    target = torch.empty_like(source)
    seconds = _replayed(lambda: target.copy_(source), repeats)
    return 2 * source.numel() * source.element_size() / seconds


def _sets(batch: int, vocab: int, dtype: torch.dtype, accept_all: bool, device) -> list:
    size = batch * (GAMMA + 1) * vocab * dtype.itemsize
    count = max(2, min(32, int(CACHE_BYTES // size) + 1))
    return [case(batch, vocab, dtype, device, seed, accept_all) for seed in range(count)]


def _on_gpu(args) -> Report:
    from spin_core.verify import kernel

    bandwidth = copy_bandwidth()
    rows, bars, notes = [], [], [f"copy bandwidth {bandwidth / 1e12:.2f} TB/s, bytes read plus written"]
    for vocab in args.vocab or VOCABULARIES:
        for batch in args.batch or BATCHES:
            for dtype in (torch.bfloat16, torch.float32):
                for accept_all in (False, True):
                    sets = _sets(batch, vocab, dtype, accept_all, args.device)
                    verdicts = [kernel.verify_chain(*inputs, GAMMA) for inputs in sets]
                    floor = statistics.mean(needed_bytes(inputs[0], inputs[1], verdict)
                                            for inputs, verdict in zip(sets, verdicts)) / bandwidth
                    expected = [chain.verify_chain(*inputs) for inputs in sets]
                    equal = sum(int((v.tokens[:, :e.tokens.shape[1]] == e.tokens).all(-1).sum())
                                for v, e in zip(verdicts, expected)) / (len(sets) * batch)
                    ours = _seconds(lambda i: kernel.verify_chain(*sets[i], GAMMA), len(sets), args.repeats)
                    row = {"vocab": vocab, "batch": batch, "dtype": str(dtype).removeprefix("torch."),
                           "drafts": "all accepted" if accept_all else "sampled", "kernel_us": ours * 1e6,
                           "floor_us": floor * 1e6, "share_of_floor": floor / ours, "equal_to_reference": equal}
                    for name, call in _others(sets, notes):
                        try:
                            timed = _eager_seconds if name.startswith("reference") else _seconds
                            row[f"{name}_us"] = timed(call, len(sets), args.repeats) * 1e6
                        except Exception as error:      # another's kernel: any failure of its own is its result
                            _note(notes, f"{name} did not run here: {type(error).__name__}: {str(error)[:120]}")
                    rows.append(row)
                    if (vocab, batch, accept_all) == (128256, 64, True):
                        bars.append(Bar(f"share of the copy bandwidth, {row['dtype']}, V 128256, batch 64, gamma 4",
                                        floor / ours, ">= 0.8"))
                        others = [v for k, v in row.items() if k.endswith("_us") and k not in ("kernel_us", "floor_us")]
                        bars.append(Bar(f"fastest other over the kernel, {row['dtype']}, likewise",
                                        min(others) / row["kernel_us"] if others else None, ">= 1.0"))
                    del sets, verdicts, expected
    return Report("verify", rows, bars, notes)


def _others(sets: list, notes: list[str]) -> list[tuple[str, Callable[[int], object]]]:
    """The other ways to verify the same inputs, as far as they are installed."""
    dense = [(inputs[0].view(len(inputs[2]), GAMMA + 1, -1), inputs[1].tokens.view(-1, GAMMA),
              inputs[1].probs.view(len(inputs[2]), GAMMA, -1)) for inputs in sets]
    compiled = torch.compile(chain.verify_chain)
    ways = [("reference", lambda i: chain.verify_chain(*sets[i])), ("reference_compiled", lambda i: compiled(*sets[i]))]
    sampling = _optional("flashinfer.sampling", notes)
    if sampling:
        ids = [tokens.int() for _, tokens, _ in dense]
        ways.append(("flashinfer", lambda i: sampling.chain_speculative_sampling(
            dense[i][2], ids[i], dense[i][0].float().softmax(-1))))
    theirs = _optional("flashspec.kernels.verify_kernel", notes)
    if theirs:
        log_q = [q.log() for _, _, q in dense]
        u = torch.rand(dense[0][1].shape, device=dense[0][0].device)
        ways.append(("flashspec", lambda i: theirs.verify_tokens(
            log_q[i], dense[i][0][:, :GAMMA].float().log_softmax(-1), u, dense[i][1])))
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


def _tuned(args) -> Report:
    """The kernel over its block sizes, on the case of the bars."""
    from spin_core.verify import kernel

    bandwidth = copy_bandwidth()
    processors = torch.cuda.get_device_properties("cuda").multi_processor_count
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        sets = _sets((args.batch or [64])[0], (args.vocab or [128256])[0], dtype, True, args.device)
        floor = statistics.mean(needed_bytes(x[0], x[1], kernel.verify_chain(*x, GAMMA)) for x in sets) / bandwidth
        for block in (2048, 4096, 8192, 16384):
            for tiles in (1, 2, 4, 8):
                for each in (1, 2, 4):
                    sizes = dict(block=block, tiles=tiles, programs=each * processors)
                    seconds = _seconds(lambda i: kernel.verify_chain(*sets[i], GAMMA, **sizes), len(sets), args.repeats)
                    rows.append({"dtype": str(dtype).removeprefix("torch."), "block": block, "tiles": tiles,
                                 "programs_per_processor": each, "kernel_us": seconds * 1e6,
                                 "share_of_floor": floor / seconds})
    rows.sort(key=lambda row: (row["dtype"], -row["share_of_floor"]))
    return Report("verify", rows, notes=[f"copy bandwidth {bandwidth / 1e12:.2f} TB/s"])
