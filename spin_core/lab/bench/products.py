"""What products of few rows cost: the model's own linear layers against packed ones, and a whole forward pass."""

import torch
import torch.nn.functional as F

from spin_core import zoo
from spin_core.lab.bench import Bar, Report, positive
from spin_core.lab.bench.timing import interleaved
from spin_core.runtime import ModelRunner
from spin_core.runtime.linear import PackedLinear, can_pack, can_round, round_products

DESCRIPTION = "matrix products of 1 to 40 rows, plain, packed and in bf16, and the target's forward pass over them"
ROWS = (1, 2, 3, 5, 8, 16, 40)


def add_arguments(parser) -> None:
    parser.add_argument("--context", type=positive, default=128,
                        help="cached tokens before the forward pass (default 128)")
    parser.add_argument("--repeats", type=positive, default=15, help="interleaved repeats of every timing (default 15)")


def run(args) -> Report:
    family = zoo.load("smollm2")
    layers = [m for m in family.target.model.modules() if type(m) is torch.nn.Linear]
    packable = can_pack(layers[0].weight)
    packed = [PackedLinear(layer) for layer in layers] if packable else []
    rounded = torch.nn.ModuleList(map(PackedLinear, layers)) if packable and can_round() else None
    if rounded is not None:
        round_products(rounded)
    runners = {bf16: ModelRunner(family.target, 1, args.context + max(ROWS), bf16=bf16)
               for bf16 in (False, True) if rounded is not None or not bf16}
    for runner in runners.values():
        runner.forward([0], [args.context], torch.randint(family.vocab_size, (args.context,)), [0])

    def plain(rows: int) -> None:
        for layer, x in zip(layers, inputs[rows]):
            F.linear(x, layer.weight)

    def with_packed(rows: int, packed=packed) -> None:
        for layer, x in zip(packed, inputs[rows]):
            layer(x)

    def forward(rows: int, bf16: bool = False) -> None:
        runners[bf16].forward([0], [rows], torch.randint(family.vocab_size, (rows,)), list(range(rows)))
        runners[bf16].cache.truncate(0, args.context)

    columns = ("plain", "packed", "bf16", "forward", "forward_bf16")
    kinds = {"plain": plain, "forward": forward}
    if packable:
        kinds["packed"] = with_packed
    if rounded is not None:
        kinds |= {"bf16": lambda rows: with_packed(rows, rounded), "forward_bf16": lambda rows: forward(rows, True)}
    inputs = {r: [torch.randn(r, layer.in_features) for layer in layers] for r in ROWS}
    work = {(what, r): (lambda f=f, r=r: f(r)) for r in ROWS
            for what, f in kinds.items()}
    with torch.inference_mode():
        times = interleaved(work, args.repeats)
    megabytes = sum(layer.weight.numel() for layer in layers) * 4 / 1e6
    rows = [{"rows": r, **{f"{what}_ms": times[what, r] * 1e3 if what in kinds else None for what in columns},
             "forward_vs_one_row": times["forward", r] / times["forward", 1]} for r in ROWS]
    return Report("products", rows, [Bar("forward pass of 5 rows over 1 row, batch 1",
                                         times["forward", 5] / times["forward", 1], "<= 1.35")],
                  [f"products of all {len(layers)} linear layers of the target but its head, {megabytes:.0f} MB of "
                   "fp32 weights (packed: the same; bf16: half of it)",
                   f"forward: the whole target with {args.context} cached tokens and logits for every row",
                   *([] if packable else ["this machine has no packed products: plain ones are used throughout"]),
                   *([] if rounded is not None else ["this machine has no products in bf16"])])
