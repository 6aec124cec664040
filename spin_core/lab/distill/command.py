"""``python -m spin_core distill --drafter NAME``: from nothing to a drafter's file."""

import json
import signal
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from spin_core.files import check_writable, locked, save_json
from spin_core.lab.distill import corpus, train
from spin_core.lab.distill.generate import generate
from spin_core.lab.distill.recipes import RECIPES, Recipe, source_layers
from spin_core.lab.distill.table import TABLES, TableRecipe, training_part, write_table
from spin_core.zoo.fed import LAST

COMPILED_FROM = 600     # seconds of training that repay compiling


def add_arguments(parser) -> None:
    parser.add_argument("--drafter", action="append", metavar="NAME", default=[],
                        help=f"which one to make, or data for the data alone: {', '.join([*RECIPES, *TABLES])}; may be "
                             "repeated, and those named together learn from the same batches")
    parser.add_argument("--budget-minutes", type=float, default=60.0,
                        help="minutes for the data and the training together (default 60)")
    parser.add_argument("--answer-tokens", type=int, default=400_000,
                        help="tokens of answers to train on; fewer if 40 %% of the budget runs out; 0: only the data "
                             "that are there (default 400000)")
    parser.add_argument("--steps", type=int, help="training steps, instead of what the budget allows")
    parser.add_argument("--forever", action="store_true",
                        help="train until SIGTERM or Ctrl-C, on the data there are and those that appear")
    parser.add_argument("--shard", type=int, help="sequences in a shard of data (default 256, on a GPU 2048)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/distill"),
                        help="folder for data, checkpoints and weights")
    parser.add_argument("--data", type=Path, nargs="+", default=[],
                        help="more folders of data (default: OUT/data alone)")
    parser.add_argument("--export", type=Path, metavar="FOLDER",
                        help="only write the files of the drafters that have a checkpoint in --out into FOLDER")
    parser.add_argument("--speculators", action="store_true",
                        help="beside the file of an EAGLE-3 head, a folder that vLLM and speculators load")


def run(args) -> int:
    """Make the drafters asked for; an interrupted run goes on where it was. ValueError for what cannot be made."""
    from spin_core import zoo
    from spin_core.workloads import load_workload

    known = {**RECIPES, **TABLES}
    for name in args.drafter if not args.export else ():        # a checkpoint knows its own recipe
        if name != "data" and name not in known:
            raise ValueError(f"unknown drafter {name!r}; known: {', '.join(known)}, or data")
    if not args.drafter and not args.export:
        raise ValueError("--drafter NAME is missing: what is to be made?")
    check(args.out, args.shard, args.steps, args.budget_minutes * 60, args.answer_tokens)      # before models are read
    family = zoo.load("smollm2", drafters=[], device=args.device)
    if args.export:
        made = sorted({path.stem for path in args.out.glob("*.pt")} - {"fixed"})
        if missing := set(args.drafter) - set(made) or not made and {"a drafter"}:
            raise ValueError(f"--export: no checkpoint of {', '.join(sorted(missing))} in {args.out}")
        for name in args.drafter or made:
            export(family, args.out, name, args.export, args.speculators)
        return 0
    recipes = {name: known[name] for name in args.drafter if name != "data"}
    options = dict(data=args.data, seed=args.seed, shard_size=args.shard, steps=args.steps)
    if args.forever:
        stop: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):          # a checkpoint is written first
            signal.signal(number, lambda number, frame: stop.append(number))
        options |= dict(stopped=lambda: bool(stop), answer_tokens=0, budget=float("inf"))
    else:
        options |= dict(answer_tokens=args.answer_tokens, budget=args.budget_minutes * 60)
    prompts = [p.messages for p in load_workload("mix", split="train")]
    distill(family, recipes, args.out, train_prompts=prompts, speculators=args.speculators, **options)
    return 0


def check(out: Path, shard_size: int | None, steps: int | None, budget: float, answer_tokens: int) -> None:
    """Raise ValueError for numbers no drafter can be made with, OSError if nothing can be written into ``out``."""
    for option, value, least in (("--steps", steps, 1), ("--answer-tokens", answer_tokens, 0),
                                 ("--shard", shard_size, 2)):       # a shard's first sequence is held out
        if value is not None and value < least:
            raise ValueError(f"{option} {value}: must be at least {least}")
    if not 0 < budget < float("inf"):               # NaN is not, either
        raise ValueError(f"--budget-minutes {budget / 60:g}: must be a number of minutes above 0")
    check_writable(out / ".writable")


def distill(family, recipes: dict[str, Recipe | TableRecipe], out: Path, *, budget: float, answer_tokens: int,
            data: list[Path] = (), seed: int = 0, train_prompts=None, shard_size: int | None = None,
            steps: int | None = None, evaluations: int = 8, speculators: bool = False, stopped=lambda: False,
            tell=print) -> None:
    """Data, training and files for every recipe, in ``budget`` seconds; ``answer_tokens`` 0 makes no data.

    A drafter with a checkpoint in ``out`` goes on from it. ValueError, before any work, if its recipe was another, or
    the seed of the data; BlockingIOError if another process makes drafters in ``out``.
    """
    began, folder = time.time(), out / "data"
    tables = {name: recipe for name, recipe in recipes.items() if isinstance(recipe, TableRecipe)}
    models = {name: recipe for name, recipe in recipes.items() if isinstance(recipe, Recipe)}
    for name, recipe in models.items():
        source_layers(recipe, family.target.config.num_hidden_layers)
        if (path := out / f"{name}.pt").exists():
            train.check_recipe(name, recipe, torch.load(path, weights_only=True, map_location="cpu"))
    with locked(out if answer_tokens or not models else out / next(iter(models))):    # endless runs share a pool
        if answer_tokens:       # data decides a drafter's quality, so it gets a good part of the time
            size = shard_size or (2048 if family.target.device.type == "cuda" else 256)
            generate(family, folder, answer_tokens, seed=seed, shard_size=size, train_prompts=train_prompts, tell=tell,
                     deadline=began + (.4 * budget if recipes else budget))
        folders = [*([folder] if folder.exists() else []), *data]
        if budget < float("inf") and not any(corpus.paths(part) for part in folders):
            raise ValueError(f"no data in {', '.join(map(str, [folder, *data]))}: --answer-tokens above 0 makes some")
        for name, recipe in tables.items():
            path = out / name / f"{name}.safetensors"
            shards = (corpus.read(p) for folder in folders for p in corpus.paths(folder))
            write_table(path, training_part(shards), family.vocab_size, recipe)
            tell(f"{name}: {path} ({path.stat().st_size / 1e6:.1f} MB)")
        if not models:
            return
        seconds = max(1.0, began + budget - time.time())
        train.run(family, models, out, folders, seconds=seconds, steps=steps, evaluations=evaluations, stopped=stopped,
                  evaluate_minutes=min(15.0, seconds / 60 / evaluations), tell=tell,
                  compiled=steps is None and seconds >= COMPILED_FROM)
        for name in models:
            export(family, out, name, out / name, speculators, tell=tell)


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """``weight [rows, columns]`` as int8, and the float32 ``[rows]`` that each row is to be multiplied by, as
    :func:`spin_core.zoo.weights.read` does."""
    scale = (weight.float().abs().amax(1) / 127).clamp(min=1e-12)
    return (weight.float() / scale[:, None]).round().to(torch.int8), scale


def export(family, out: Path, name: str, folder: Path, speculators: bool = False, int8: bool = True,
           tell=print) -> None:
    """Write the mean weights of ``name``'s checkpoint in ``out`` into ``folder``: a drafter's file
    (:mod:`spin_core.zoo.pruned`), matrices in int8 or bf16, and its log beside it."""
    state = torch.load(out / f"{name}.pt", weights_only=True, map_location="cpu")
    recipe = train.check_recipe(name, None, state)
    ids = state["ids"].sort().values
    tensors = {"draft_ids": ids.to(torch.int32)}
    for key, value in state["mean"].items():
        if int8 and value.dim() == 2:
            tensors[key], tensors[f"{key}.scale"] = to_int8(value)
        else:
            tensors[key] = value.bfloat16()
    texts = torch.load(out / "fixed.pt", weights_only=True)["held"]
    facts = {"recipe": asdict(recipe), "steps": state["step"], "tokens": state["tokens"], "data": state["data"],
             "answer_tokens": state["answer_tokens"],
             "held_out_tokens": sum(len(t["tokens"]) - t["prompt"] for t in texts),
             "cpu_hours": round(state["seconds"] / 3600, 2),
             "began_as_target_layers": source_layers(recipe, family.target.config.num_hidden_layers),
             "family": family.name, "torch": torch.__version__}
    ways = {"window": recipe.window, "carry": None if recipe.carry == "last" else recipe.carry,
            "layers_read": ",".join("last" if layer == LAST else str(layer) for layer in recipe.reads) or None}
    path = folder / f"{name}.safetensors"
    corpus.save_whole(path, tensors, {"description": recipe.describe(), **{key: str(value) for key, value in (
        *facts.items(), *((key, value) for key, value in ways.items() if value is not None))}})
    log = []
    for line in (out / "log.jsonl").read_text("utf-8").splitlines():
        with suppress(json.JSONDecodeError):        # a full disk has left half a line
            log.append(json.loads(line))
    held = [line for line in log if line.get("event") == "held out" and line["head"] == name]
    save_json(path.with_suffix(".json"), {**facts, "log": [
        {"step": line["step"], "tokens": line["tokens"], "loss": line.get("loss"), "seconds": 3600 * line["cpu_hours"],
         "held_out_tokens_per_verification": line["tokens_per_verification"]["all"],
         "held_out_by_kind": line["tokens_per_verification"],
         "held_out_agreement": line["agreement"], "held_out_overlap": line.get("overlap"),
         "answer_tokens": line["answer_tokens"]} for line in held]})
    tell(f"{name}: {path} ({path.stat().st_size / 1e6:.1f} MB)")
    if speculators and recipe.form == "eagle3":
        from spin_core.lab.distill.heads import save
        from spin_core.zoo import pruned

        save(pruned.load_pruned(path, family.target, family.vocab_size), folder / f"{name}-speculators", family.target)
