"""How much work passes are on this machine, how long they take, and the hardware profile fitted to them.

``figures/data/MACHINE/passes.json`` is where :mod:`spin_core.lab.simulate.profiles` looks for the JSON of such a run.
"""

from collections.abc import Mapping

import torch

from spin_core import zoo
from spin_core.lab import provenance
from spin_core.lab.bench import Report, positive
from spin_core.lab.bench.answers import pool
from spin_core.lab.bench.timing import PassTimes, interleaved, timings
from spin_core.lab.simulate.profiles import Hardware, Model, fit, work

DESCRIPTION = "passes of the target and its drafters by rows and context, and the hardware profile fitted to them"
CONTEXTS = (48, 192, 384)       # cached tokens per request
DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def add_arguments(parser) -> None:
    parser.add_argument("--repeats", type=positive, default=9, help="interleaved repeats of every timing (default 9)")


def run(args) -> Report:
    family = zoo.load("smollm2")
    rows = work_of(family, timings(family, pool(family)[0], {}, args.repeats, CONTEXTS))
    best = peaks(family, args.repeats)
    machine = fitted(family, rows, best)
    return Report("passes", [{"peak": what, "per_s": value} for what, value in best.items()] + rows, notes=[
        "flop, bytes of weights, bytes of keys and values, kernels: what a pass has to do",
        "peaks: of a big product and of a big sum, in FLOP/s and bytes/s",
        f"{machine.describe()}, {machine.turn * 1e6:.0f} us per pass"])


def models(family) -> dict[str, Model]:
    """Dimensions of the target and of the drafters that are models."""
    sources = {"target": family.target} | {name: family.drafters[name].model for name in pool(family)[0]}
    return {name: Model.of(name, source) for name, source in sources.items()}


def work_of(family, times: PassTimes) -> list[dict]:
    """Rows of a report: what passes have to do, and take. ``fitted``: not the prompts of drafters, whose profile would
    charge them for logits that are not computed."""
    known, dtype = models(family), DTYPES[family.target.dtype]
    return [{"model": name, "rows": rows, "slots": slots, "context": context,
             **work(known[name], rows, slots, context, dtype), "seconds": seconds,
             "fitted": name == "target" or rows == slots} for (name, rows, slots, context), seconds in times.items()]


def peaks(family, repeats: int, size: int = 2048, values: int = 1 << 26) -> dict[str, float]:
    """FLOP/s of a big product and bytes/s of a big sum, in the family's dtype and on its device."""
    like = {"dtype": family.target.dtype, "device": family.target.device}
    square, line = torch.ones(size, size, **like), torch.ones(values, **like)
    seconds = interleaved({"flops": lambda: (square @ square)[0, 0].item(), "bandwidth": lambda: line.sum().item()},
                          repeats)
    return {"flops": 2 * size ** 3 / seconds["flops"], "bandwidth": line.nbytes / seconds["bandwidth"]}


def fitted(family, rows: list[dict], best: Mapping[str, float],
           factors: Mapping[str, float] | None = None) -> Hardware:
    """The profile of these passes, each ``factors`` of its model as long as it was."""
    rows = [row | {"seconds": row["seconds"] * (factors or {}).get(row["model"], 1.0)} for row in rows if row["fitted"]]
    return fit(rows, best, provenance.here()["memory_gib"] * 2 ** 30, source=f"{len(rows)} passes measured here",
               dtype=DTYPES[family.target.dtype])
