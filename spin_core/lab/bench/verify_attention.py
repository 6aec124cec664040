"""The attention part of verification: every way to attend a ragged batch, over batch sizes and skews of lengths."""

from argparse import Namespace

import numpy as np
import torch

from spin_core.lab.bench import Bar, Report, at_least, positive
from spin_core.decompose import STRATEGIES
from spin_core.decompose.attend import Workspace
from spin_core.decompose.calibrate import timed
from spin_core.decompose.costs import Heads
from spin_core.lab.bench.other_attention import PaddedView, VarlenStep
from spin_core.lab.bench.timing import interleaved
from spin_core.decompose.steps import NAMES, step_class
from spin_core.decompose.strategies import Attention
from spin_core.kv.batch import RaggedBatch
from spin_core.kv.cache import SlotCache

DESCRIPTION = "attention over ragged batches: padded, grouped, decomposed, per request, and today's kernels on a GPU"
BATCHES = (4, 8, 16)
DRAFTS = (0, 4)                 # drafted tokens; the target reads one more
SKEWS = ("equal", "alpaca", "spread", "one long")
LAYERS = 2
COMPARED = 100                    # rounds that compare the best strategy and "auto", where these differ
GPU_SCALE = 4                   # contexts four times as long: the short ones are over before a GPU is busy


def add_arguments(parser) -> None:
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    parser.add_argument("--batch", type=positive, nargs="+", default=list(BATCHES), help="batch sizes (default 4 8 16)")
    parser.add_argument("--repeats", type=at_least(2), default=40,
                        help="rounds, at least 2, in which all take turns (default 40)")


def lengths(skew: str, batch: int, scale: int = 1) -> list[int]:
    """Keys per request. "alpaca": instructions of a sentence or two in all stages of their answers, lognormal."""
    if skew == "equal":
        keys = [300] * batch
    elif skew == "spread":
        keys = np.linspace(60, 960, batch)
    elif skew == "one long":
        keys = [1000] + [100] * (batch - 1)
    else:
        keys = np.clip(np.random.default_rng(batch).lognormal(5.0, 0.8, batch), 24, 1000)
    return [int(k) * scale for k in keys]


@torch.inference_mode()
def run(args) -> Report:
    device = torch.device(args.device)
    gpu = device.type == "cuda"
    if gpu and not torch.cuda.is_available():
        raise ValueError("--device cuda, but torch sees no CUDA device")
    heads, dim, dtype = (Heads(32, 1), 128, torch.bfloat16) if gpu else (Heads(3, 3), 64, torch.float32)
    rows, errors = [], []
    for batch in args.batch:
        for skew in SKEWS:
            for drafted in DRAFTS:
                keys = lengths(skew, batch, GPU_SCALE if gpu else 1)
                row, error = _case(keys, drafted + 1, heads, dim, dtype, device, args.repeats)
                rows.append({"batch": batch, "skew": skew, "q": drafted + 1, **row})
                errors.append(error)
    at_16 = [r for r in rows if r["batch"] == 16 and r["skew"] == ("one long" if gpu else "alpaca") and r["q"] == 5]
    long = [r["touched"] / r["keys"] for r in rows if r["skew"] == "one long"]
    bars = [Bar("keys touched by decomposed over keys needed, one long and many short", max(long), "<= 1.1")]
    if gpu:
        limits = [r["decomposed_us"] / min(r["flex_us"], r["varlen_us"]) for r in at_16]
        gain = [min(r["padded_us"], r["padded_view_us"]) / r["decomposed_us"] for r in at_16]
        bars += [Bar("padded (its better form) / decomposed, batch 16, one long and many short",
                     min(gain, default=None), ">= 1.58"),
                 Bar("decomposed / the better unpadded kernel of today, same", max(limits, default=None), "<= 1.15")]
    else:
        gathered, in_place = (min((r[name] for r in at_16), default=None)
                              for name in ("padded_over_decomposed", "padded_view_over_auto"))
        bars += [Bar("padded / decomposed, batch 16, Alpaca-like, both gathered", gathered, ">= 1.5"),
                 Bar("padded view / auto, the same, neither gathered", in_place, ">= 1.5"),
                 Bar("the best strategy / auto, at worst", min(r["best_over_auto"] for r in rows), ">= 0.97")]
    return Report("verify-attention", rows, bars, [
        f"{heads.kv * heads.group} heads over {heads.kv} kv heads of {dim}, {dtype}, {torch.get_num_threads()} "
        f"threads; us per layer, medians of {args.repeats} rounds in which all take turns, over {LAYERS} layers; "
        "ratios are medians of ratios within a round; where auto is not the best strategy, the two are compared in "
        "rounds of their own",
        "plan_us: planning and layout, once per step and not per layer",
        f"largest difference between strategies {max(errors):.1e}",
        "padded_view: the padded batch without gathering, if slots and memory allow",
        *(["recorded as CUDA graphs: the device's time alone; the bar takes the better form of padded",
           "flex: flex attention with a block mask; varlen: flash attention over sequences packed beforehand"]
          if gpu else [])])


def on_gpu(settings) -> Report:
    """The section "verify-attention" of ``bench gpu``: largest batches first, as long as there is time."""
    report = Report("verify-attention", [])
    for batch in report.within(settings.left, (1,) if settings.dry else sorted(BATCHES, reverse=True)):
        part = run(Namespace(device=settings.device, batch=[batch], repeats=2 if settings.dry else 40))
        report.rows += part.rows
        report.bars += [bar for bar in part.bars if bar.value is not None and (batch == 16 or "touched" in bar.name)]
        report.notes += [f"batch {batch}: {note}" for note in part.notes if "largest difference" in note]
    return report


def _case(keys: list[int], queries: int, heads: Heads, dim: int, dtype, device, repeats: int) -> tuple[dict, float]:
    batch_size = len(keys)
    room = -(-max(keys) // 128) * 128
    cache = SlotCache(LAYERS, batch_size, heads.kv, room, dim, dtype, device)
    for tensor in cache.k + cache.v:
        tensor.normal_()
    tokens = torch.zeros(batch_size * queries, dtype=torch.int64, device=device)
    batch = RaggedBatch.build(tokens, list(range(batch_size)), [queries] * batch_size, [k - queries for k in keys])
    # token by token, as a model's projection leaves it
    query = torch.randn(batch_size * queries, heads.kv * heads.group, dim, dtype=dtype, device=device).transpose(0, 1)
    workspace, steps, of = Workspace(), {}, {}
    names = NAMES if device.type == "cuda" else STRATEGIES           # on a CPU flex computes all and masks
    for name in names:
        attention = Attention(name, heads.kv * heads.group, cache)
        made = attention.plan(keys, batch.counts)
        cls = step_class(name, cache)
        of[name] = (made.pools, made.unpooled, cls)        # strategies may come to the same plan: timed once, not raced
        steps.setdefault(of[name], cls(made, batch, cache, heads, workspace))
    for name, make in _others(device).items():
        of[name] = name
        steps[name] = make(batch, cache)
    outs = {key: step.attend(0, query, dim ** -0.5).float() for key, step in steps.items()}
    calls = {key: [lambda s=step, layer=layer: s.attend(layer, query, dim ** -0.5) for layer in range(LAYERS)]
             for key, step in steps.items()}
    times = dict(zip(steps, timed(list(calls.values()), device, repeats)))
    us = {name: float(np.median(times[key])) * 1e6 for name, key in of.items()}
    best = min(names, key=lambda name: np.median(times[of[name]]))
    ratios = [1.0] if of[best] == of["auto"] else \
        np.divide(*timed([calls[of[best]], calls[of["auto"]]], device, max(repeats, min(COMPARED, 5 * repeats))))
    others = {name: us.pop(name) for name in _others(device)}
    view = others.pop("padded_view")
    auto, pieces = steps[of["auto"]].plan, steps[of["decomposed"]].plan
    row = {"keys": pieces.kv_true, "touched": pieces.kv_touched, "width": pieces.width,
           **{f"{name}_us".replace("-", "_"): value for name, value in us.items()},
           "padded_view_us": view, **{f"{name}_us": value for name, value in others.items()},
           "best": best, "best_over_auto": float(np.median(ratios)),
           "padded_over_decomposed": _ratio(times[of["padded"]], times[of["decomposed"]]),
           "padded_view_over_auto": _ratio(times["padded_view"], times[of["auto"]]),
           "auto_pools": sum(len(pool.requests) for pool in auto.pools),
           "plan_us": _planning(batch, cache, heads) * 1e6}
    reference = outs[of["per-request"]]
    return row, max((out - reference).abs().max().item() for out in outs.values())


def _ratio(one: np.ndarray, other: np.ndarray) -> float:
    """Median ratio of what was timed in the same rounds."""
    return float(np.median(one / other))


def _planning(batch: RaggedBatch, cache: SlotCache, heads: Heads) -> float:
    """Seconds to plan a step and lay it out."""
    attention = Attention("auto", heads.kv * heads.group, cache)
    return interleaved({"plan": lambda: attention.step(batch)}, 10)["plan"]


def _others(device: torch.device) -> dict:
    """Ways that only the benchmark knows."""
    if device.type != "cuda":
        return {"padded_view": PaddedView}
    return {"padded_view": PaddedView, "varlen": VarlenStep}
