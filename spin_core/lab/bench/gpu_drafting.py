"""The section "drafting" of ``bench gpu``: a draft by launches, and the same draft by CUDA graphs.

The drafters have the paper's shapes and random weights, and their caches hold random numbers: a pass takes as long
whatever it computes. Both ways go through the engine's own drafter, which looks after every token whether it still
makes sense, so the host's clock around a whole draft is what a step waits for.
"""

from collections.abc import Callable, Sequence
from itertools import product

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from spin_core.lab.bench import Report
from spin_core.lab.bench.gpu import TINY, Settings, attempt
from spin_core.lab.bench.timing import interleaved
from spin_core.draft import ModelDrafter
from spin_core.runtime import graphs
from spin_core.request import Request, SamplingParams
from spin_core.lab.simulate.profiles import DRAFTERS, Model
from spin_core.zoo import DraftModel

SHAPES = ("68M", "1.1B")
BATCHES = (1, 8, 32)        # graphs are for at most so many requests
CACHED = (128, 1024)        # tokens that every request holds
GAMMA = 4


def on_gpu(settings: Settings) -> Report:
    if settings.dry:
        return run([TINY], (1, 2), (8,), "cpu", torch.float32, 1, settings.left)
    return run([DRAFTERS[name] for name in SHAPES], BATCHES, CACHED, settings.device, torch.bfloat16, 15, settings.left)


def run(shapes: Sequence[Model], batches: Sequence[int], cached: Sequence[int], device: str, dtype: torch.dtype,
        repeats: int, left: Callable[[], float] = lambda: float("inf"), gamma: int = GAMMA) -> Report:
    """One row for each shape, batch and number of cached tokens, as long as ``left()`` seconds are positive."""
    report = Report("drafting", [], notes=[
        f"random weights, {dtype}; drafts of {gamma} tokens, medians of {repeats} in turns; ms per token: a draft's "
        f"time over {gamma}; each request of the batch gets one token in it; same_drafts: share of equal tokens"])
    if torch.device(device).type != "cuda":
        report.notes.append(f"no CUDA graphs on {device}: only the eager way is timed")
    model, of = None, None
    for shape, batch, held in report.within(left, list(product(shapes, batches, cached))):
        if shape is not of:
            model, of = attempt(report, shape.name, lambda: random_llama(shape, device, dtype)), shape
        if model is not None:
            case = {"drafter": shape.name, "batch": batch, "cached": held, "gamma": gamma, "weights": "random"}
            name = f"{shape.name}, batch {batch}, {held} cached"
            if row := attempt(report, name, lambda: _case(name, model, batch, held, gamma, repeats, report.notes)):
                report.rows.append(case | row)
    return report


def random_llama(shape: Model, device: str, dtype: torch.dtype) -> LlamaForCausalLM:
    """A Llama of that shape with random weights, made on the device."""
    config = LlamaConfig(vocab_size=shape.vocab, hidden_size=shape.width, intermediate_size=shape.ffn,
                         num_hidden_layers=shape.layers, num_attention_heads=shape.heads, head_dim=shape.head_dim,
                         num_key_value_heads=shape.kv_heads, max_position_embeddings=2048)
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def _case(name: str, model: LlamaForCausalLM, batch: int, cached: int, gamma: int, repeats: int,
          notes: list[str]) -> dict:
    """The times, and how they compare where there are graphs; if these fail, a note says why."""
    room = cached + 64                      # graphs pad rows, and need room for them
    drafter = ModelDrafter(DraftModel("random", model, None, room), batch, room, model.config.vocab_size)
    runner, device = drafter.runner, model.device
    for kept in (*runner.cache.k, *runner.cache.v):
        kept.normal_()
    runner.cache.lengths[:] = [cached] * batch
    requests = [Request([1 + b % (model.config.vocab_size - 1)] * (cached + 1), SamplingParams(), slot=b)
                for b in range(batch)]

    def draft(way: graphs.Graphs | None) -> torch.Tensor:
        """The same draft every time: it begins by forgetting the last one."""
        runner.graphs = way
        tokens = drafter.propose(requests, [gamma] * batch).tokens
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return tokens

    graphs.attach(runner)
    captured, eager, ways = runner.graphs, draft(None), {"eager": lambda: draft(None)}
    if captured:
        same = float((draft(captured) == eager).float().mean())
        if captured.buckets and not captured.failed:
            ways["graphs"] = lambda: draft(captured)
        else:
            notes.append(f"{name}: no graphs: {captured.failed or 'the passes fit no bucket'}")
    seconds = interleaved(ways, repeats)
    row = {f"{way}_ms_per_token": value * 1e3 / gamma for way, value in seconds.items()}
    if "graphs" in seconds:
        row |= {"eager_over_graphs": seconds["eager"] / seconds["graphs"], "same_drafts": same}
    return row
