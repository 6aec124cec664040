"""``python -m spin_core distill --drafter NAME``: from nothing to a drafter's file."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import torch
from safetensors.torch import load_file

from spin_core.lab.distill import corpus
from spin_core.lab.distill.boost import missed, older
from spin_core.lab.distill.drafters import RECIPES, Recipe, draft_vocabulary, fit_fuse, save, source_layers
from spin_core.lab.distill.generate import generate
from spin_core.lab.distill.states import States, fast_bf16, read
from spin_core.lab.distill.table import TABLES, TableRecipe, training_part, write_table
from spin_core.lab.distill.train import Data, Settings, identity, read_checkpoint, train, write_log
from spin_core.files import check_writable, locked

MAX_HELD_OUT = 96


def add_arguments(parser) -> None:
    parser.add_argument("--drafter", action="append", required=True, metavar="NAME",
                        help=f"which one to make, or data for the data alone: {', '.join([*RECIPES, *TABLES])}; may be "
                             "repeated")
    parser.add_argument("--budget-minutes", type=float, default=60.0,
                        help="minutes for the data and the training together (default 60)")
    parser.add_argument("--answer-tokens", type=int, default=400_000,
                        help="tokens of answers to train on; fewer if 40 %% of the budget runs out (default 400000)")
    parser.add_argument("--steps", type=int, help="training steps, instead of what the budget allows")
    parser.add_argument("--batch", type=int, help="sequences per training step (default 12, on a GPU 128)")
    parser.add_argument("--shard", type=int, help="sequences generated at once (default 96, on a GPU 2048)")
    parser.add_argument("--boost-after", metavar="NAME",
                        help="learn only what this drafter does not get right: one of the package, or one in --out; "
                             "the new ones are called DRAFTER-after-NAME")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/distill"),
                        help="folder for data, checkpoints and weights")


def run(args) -> int:
    """Make the drafters asked for; an interrupted run goes on where it was. ValueError for what cannot be made."""
    from spin_core import zoo
    from spin_core.workloads import load_workload

    known = {**RECIPES, **TABLES}
    for name in args.drafter:
        if name != "data" and name not in known:
            raise ValueError(f"unknown drafter {name!r}; known: {', '.join(known)}, or data")
    settings = {"batch": args.batch, "steps": args.steps}
    check(args.out, args.shard, settings, args.budget_minutes * 60, args.answer_tokens)    # before models are read
    torch.set_float32_matmul_precision("high")
    family = zoo.load("smollm2", drafters=[], device=args.device)
    prompts = [p.messages for p in load_workload("mix", split="train")]
    distill(family, {n: known[n] for n in args.drafter if n != "data"}, args.out, budget=args.budget_minutes * 60,
            answer_tokens=args.answer_tokens, train_prompts=prompts, seed=args.seed, shard_size=args.shard,
            settings=settings, boost_after=args.boost_after)
    return 0


def check(out: Path, shard_size: int | None, settings: dict, budget: float, answer_tokens: int) -> None:
    """Raise ValueError for numbers no drafter can be made with, OSError if nothing can be written into ``out``."""
    for option, value, least in (("--steps", settings.get("steps"), 1), ("--batch", settings.get("batch"), 1),
                                 ("--answer-tokens", answer_tokens, 1),
                                 ("--shard", shard_size, 2)):       # a shard's first sequence is held out
        if value is not None and value < least:
            raise ValueError(f"{option} {value}: must be at least {least}")
    if not 0 < budget < float("inf"):               # NaN is not, either
        raise ValueError(f"--budget-minutes {budget / 60:g}: must be a number of minutes above 0")
    check_writable(out / ".writable")


def distill(family, recipes: dict[str, Recipe | TableRecipe], out: Path, *, budget: float, answer_tokens: int,
            seed: int = 0, train_prompts=None, shard_size: int | None = None, settings: dict | None = None,
            boost_after: str | None = None, tell=print) -> None:
    """Data, states, training and files for every recipe; ``budget`` seconds in all, shared equally by the drafters.

    A drafter with a checkpoint in ``out`` goes on with the data that it began with. ValueError, before any work, if
    its seed, data, recipe or batch were others; BlockingIOError if another process makes drafters in ``out``.
    """
    settings = {name: value for name, value in (settings or {}).items() if value is not None}
    check(out, shard_size, settings, budget, answer_tokens)
    with locked(out):
        _distill(family, recipes, out, budget=budget, answer_tokens=answer_tokens, seed=seed,
                 train_prompts=train_prompts, shard_size=shard_size, settings=settings, boost_after=boost_after,
                 tell=tell)


def _distill(family, recipes: dict[str, Recipe | TableRecipe], out: Path, *, budget: float, answer_tokens: int, seed: int,
             train_prompts, shard_size: int | None, settings: dict, boost_after: str | None, tell) -> None:
    """:func:`distill` with checked arguments and ``out`` locked."""
    began = time.time()
    elder = older(family, boost_after, out) if boost_after else None
    on_gpu = family.target.device.type == "cuda"
    settings = {"batch": 128 if on_gpu else 12, **settings}
    folder = out / "data"
    tables = {name: recipe for name, recipe in recipes.items() if isinstance(recipe, TableRecipe)}
    models = {f"{name}-after-{boost_after}" if elder else name: recipe for name, recipe in recipes.items()
              if isinstance(recipe, Recipe)}
    checkpoints = {name: read_checkpoint(out / name, recipe, settings["batch"], seed, folder)
                   for name, recipe in models.items()}
    # data decides a drafter's quality, so it gets a good part of the time
    generate(family, folder, answer_tokens, seed=seed, shard_size=shard_size or (2048 if on_gpu else 96),
             deadline=began + (.4 * budget if recipes else budget), train_prompts=train_prompts, tell=tell)
    for name, recipe in tables.items():
        path = out / name / f"{name}.safetensors"
        write_table(path, training_part(corpus.read(p) for p in corpus.paths(folder)), family.vocab_size, recipe)
        tell(f"{name}: {path} ({path.stat().st_size / 1e6:.1f} MB)")
    if not models:
        return
    shards, states = load(folder)

    @lru_cache(maxsize=1)           # drafters that begin together learn from the same data
    def learned_from(count: int):
        """The first ``count`` shards: what is trained on, the same for the trainer, what is held out, and facts."""
        (train_set, train_states), held = divide(shards[:count], states[:count])
        facts = {"seed": seed, "data": corpus.fingerprint(shards[:count]), "shards": count,
                 "answer_tokens": train_set.answer_tokens, "held_out_tokens": held[0].answer_tokens,
                 "family": family.name}
        wanted = None
        if elder:
            wanted = missed(elder, family.target, train_set, train_states)
            facts |= {"boost_after": boost_after, "answer_tokens_wanted": int(wanted.sum())}
            tell(f"{boost_after} misses {int(wanted.sum()):,} of {train_set.answer_tokens:,} answer tokens")
        return train_set, train_states, Data(train_set, train_states, family.target.device, wanted), held, facts

    fitted: dict[int, torch.Tensor] = {}        # by the layer that a fed drafter begins as: recipes share it
    for number, (name, recipe) in enumerate(models.items()):
        resumed = checkpoints[name]
        count = resumed["identity"]["shards"] if resumed else len(shards)
        train_set, train_states, data, held, facts = learned_from(count)
        seconds = (began + budget - time.time()) / (len(models) - number)
        setting = Settings(**{"seconds": max(seconds, 1.0), "seed": seed,
                              "autocast": torch.bfloat16 if fast_bf16(family.target.device) else None, **settings})
        if resumed:
            ids, first = resumed["draft_ids"], {}
        elif recipe.begins:
            first = beginning(out / recipe.begins / f"{recipe.begins}.safetensors", name)
            ids = first.pop("draft_ids").long()
        else:
            ids = draft_vocabulary(train_set, recipe.vocab, family.vocab_size, family.stop_ids)
            fit = recipe.fed and recipe.pruned
            layer = source_layers(recipe, family.target.config.num_hidden_layers)[0]
            if fit and layer not in fitted:
                fitted[layer] = fit_fuse(family.target, recipe, train_set, train_states)
            first = {"fuse.weight": fitted[layer]} if fit else {}
        tell(f"{name}: {recipe.layers} layers, {len(ids)} draft ids, {train_set.answer_tokens:,} answer tokens")
        if count < len(shards):
            tell(f"{name} goes on with the {count} of {len(shards)} shards that it began with")
        model, log = train(family.target, recipe, ids, data, held, out / name, setting,
                           identity(recipe, setting.batch, seed, count, facts["data"]), first, resumed, tell)
        facts_here = {**facts, "recipe": asdict(recipe), "batch": setting.batch, "steps": log[-1]["step"],
                      "began_as_target_layers": source_layers(recipe, family.target.config.num_hidden_layers),
                      "torch": torch.__version__, "device": family.target.device.type}
        path = out / name / f"{name}.safetensors"
        save(path, model, ids, {"description": describe(recipe), **{k: str(v) for k, v in facts_here.items()}})
        write_log(path.with_suffix(".json"), facts_here, log)
        tell(f"{name}: {path} ({path.stat().st_size / 1e6:.1f} MB)")


def beginning(path: Path, name: str) -> dict[str, torch.Tensor]:
    """The weights another drafter ended with; ValueError if it has not been made."""
    if not path.exists():
        raise ValueError(f"{name} begins as {path.stem}, which is not there ({path}): make it first "
                         f"(--drafter {path.stem} --drafter {name})")
    return load_file(path)


def describe(recipe: Recipe) -> str:
    """One line for the zoo."""
    what = f"{recipe.layers} layer{'s' * (recipe.layers > 1)} of the target, distilled"
    what += ", fed with the target's states" if recipe.fed else ""
    what += ", with a feedback memory" if recipe.carry == "mix" else ""
    return what + (f", seeing {recipe.window} tokens back" if recipe.window else "")


def load(folder: Path) -> tuple[list[corpus.Shard], list[States]]:
    """Every shard with its states, from the files beside the shards. ValueError if there is none."""
    paths = corpus.paths(folder)
    if not paths:
        raise ValueError(f"no data in {folder}: make some with python -m spin_core distill --drafter data")
    return ([corpus.read(p) for p in paths],
            [read(p.with_name(p.name.replace("shard", "states"))) for p in paths])


def divide(shards: list[corpus.Shard], states: list[States]):
    """((shard, states) for training, (shard, states) held out), the latter at most MAX_HELD_OUT greedy answers."""
    train, held = [], []
    for shard, state in zip(shards, states):
        rows = torch.arange(len(shard.lengths))
        for part, index in ((train, rows[shard.held_out:]), (held, rows[:shard.held_out])):
            part.append((shard.take(index), _take(state, shard, index)))
    joined, (held_shard, held_states) = _join(train), _join(held)
    few = torch.arange(min(MAX_HELD_OUT, len(held_shard.lengths)))
    return joined, (held_shard.take(few), _take(held_states, held_shard, few))


def _take(states: States, shard: corpus.Shard, index: torch.Tensor) -> States:
    rows = torch.cat([torch.arange(s, s + n) for s, n in zip(shard.starts[index].tolist(),
                                                             shard.lengths[index].tolist())])
    rows = rows.to(states.hidden.device)
    return States(states.hidden[rows], states.log_z[rows])


def _join(parts: list[tuple[corpus.Shard, States]]) -> tuple[corpus.Shard, States]:
    return corpus.Shard.join([p for p, _ in parts]), States.join([s for _, s in parts])
