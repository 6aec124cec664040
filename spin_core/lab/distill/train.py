"""Fit a drafter to the target's distribution: AdamW, warm-up and linear decay, checkpoints that resume exactly.

The loss is :mod:`loss`. A fed drafter is unrolled (:mod:`unroll`) and each further depth counts .8 of the one before.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from spin_core.lab.distill.corpus import Shard, fingerprint, paths, read
from spin_core.lab.distill.drafters import Recipe, own_parameters, prune
from spin_core.lab.distill.evaluate import score, tokens_per_verification
from spin_core.lab.distill.loss import distribution_loss
from spin_core.lab.distill.states import States
from spin_core.lab.distill.unroll import unroll
from spin_core.files import save_json, writing

DEPTH_WEIGHT = 0.8
WARM_UP = 0.04
TIMING_STEPS = 12
CHECKPOINT = "checkpoint.pt"


@dataclass
class Settings:
    """How to train. ``steps`` None: as many as fit into ``seconds``, measured over the first ones."""

    batch: int = 12
    steps: int | None = None
    seconds: float = 600.0
    seed: int = 0
    autocast: torch.dtype | None = None
    checkpoint_seconds: float = 120.0
    evaluations: int = 8


class Data:
    """A corpus with its states on one device, cut into shuffled batches of similar length. ``wanted [N]``: which tokens
    are to be learned; None is all of the answers."""

    def __init__(self, shard: Shard, states: States, device: torch.device, wanted: Tensor | None = None) -> None:
        self.wanted = None if wanted is None else wanted.to(device)
        self.tokens = shard.tokens.to(device)
        self.hidden, self.log_z = states.hidden.to(device), states.log_z.to(device)
        self.starts, self.lengths = shard.starts.to(device), shard.lengths.long().to(device)
        self.prompts = shard.prompt_lengths.long().to(device)
        self.cpu_lengths = shard.lengths

    def order(self, epoch: int, batch: int, seed: int) -> list[Tensor]:
        """The batches of an epoch, a function of (seed, epoch): sorted by length within groups of 16, then mixed."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        shuffled = torch.randperm(len(self.cpu_lengths), generator=generator)
        batches = []
        for group in shuffled.split(16 * batch):
            group = group[self.cpu_lengths[group].argsort(stable=True)]
            batches += [b for b in group.split(batch) if len(b) == batch or len(shuffled) < batch]
        return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """``tokens [B, T]``, ``hidden [B, T, d]``, ``log_z [B, T]``, positions that decide an answer's token
        ``[B, T]``, and prompt lengths ``[B]``."""
        width = int(self.cpu_lengths[rows].max())
        rows = rows.to(self.tokens.device)
        offset = torch.arange(width, device=rows.device)
        real = offset < self.lengths[rows, None]
        index = torch.where(real, self.starts[rows, None] + offset, self.starts[rows, None])
        deciding = (offset >= self.prompts[rows, None] - 1) & (offset < self.lengths[rows, None] - 1)
        if self.wanted is not None:
            deciding &= F.pad(self.wanted, (0, 1))[index + 1]
        return self.tokens[index].long() * real, self.hidden[index], self.log_z[index], deciding, self.prompts[rows]


def loss(model, recipe: Recipe, head: Tensor, ids: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
    """The mean loss of a batch. ``head [Vd, d]``: the target's rows of the draft vocabulary ``ids [Vd]``."""
    tokens, hidden, log_z, deciding, prompts = batch
    bodies = unroll(model, tokens, hidden.to(model.dtype), recipe.depth)
    offset = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)[deciding]
    begins = (prompts[:, None].expand_as(tokens)[deciding] - 1)
    said = columns(ids, tokens.roll(-1, 1)[deciding]) if recipe.hard else None
    total = 0.0
    for depth, body in enumerate(bodies):
        # a chain starts behind the prompt at the earliest, so early positions have no deep drafts
        weight = (offset - begins >= depth).float()
        weight *= DEPTH_WEIGHT ** depth / weight.sum().clamp(min=1)
        total = total + distribution_loss(body[deciding], head, hidden[deciding], log_z[deciding], weight,
                                 overlap=recipe.overlap, said=said)
    return total / sum(DEPTH_WEIGHT ** depth for depth in range(len(bodies)))


def columns(ids: Tensor, tokens: Tensor) -> Tensor:
    """Where each of ``tokens`` stands in the ascending ``ids``, -1 where it does not."""
    at = torch.searchsorted(ids, tokens).clamp(max=len(ids) - 1)
    return torch.where(ids[at] == tokens, at, -1)


def identity(recipe: Recipe, batch: int, seed: int, shards: int, data: str) -> dict:
    """What must stay the same when a run goes on. ``shards``: how many it learns from, ``data`` their fingerprint."""
    return {"seed": seed, "batch": batch, "shards": shards, "data": data,
            **{f"recipe's {part}": value for part, value in asdict(recipe).items()}}


def read_checkpoint(folder: Path, recipe: Recipe, batch: int, seed: int, data: Path) -> dict | None:
    """The checkpoint in ``folder``, if there is one.

    Raises ValueError, naming what differs, if another run left it. ``data`` is the folder of the shards: it may hold
    more than the run began with, not others.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    state = torch.load(path, map_location="cpu", weights_only=True)
    then, advice = state.get("identity"), "choose another --out, or delete the checkpoint"
    if then is None:
        raise ValueError(f"{path} does not say which run left it, as those of earlier versions: {advice}")
    first = paths(data)[:then["shards"]]
    now = identity(recipe, batch, seed, len(first), fingerprint(map(read, first)))
    differs = [f"{name} {then.get(name)}, now {now.get(name)}" for name in then | now
               if then.get(name) != now.get(name)]
    if differs:
        raise ValueError(f"{path} is of another run ({'; '.join(differs)}): {advice}")
    return state


def train(target: PreTrainedModel, recipe: Recipe, ids: Tensor, data: Data, held: tuple[Shard, States], folder: Path,
          settings: Settings, run: dict, first: dict[str, Tensor] | None = None, resumed: dict | None = None,
          tell=print) -> tuple[PreTrainedModel, list[dict]]:
    """Train from the pruned target (with the weights ``first`` in it), or go on from the checkpoint ``resumed``.

    Returns the drafter and the log. Checkpoints go into ``folder``, with the :func:`identity` of the ``run``.

    A run that was killed and resumed ends with the same weights as one that was not, given ``steps`` (a number of
    steps found by timing is kept in the checkpoint).
    """
    device = target.device
    torch.manual_seed(settings.seed)
    model = prune(target, recipe, ids).to(device)
    parameters = own_parameters(model)
    for name, tensor in (first or {}).items():
        parameters[name].data.copy_(tensor)
    optimizer = torch.optim.AdamW(parameters.values(), lr=recipe.rate, betas=(.9, .95), weight_decay=.01,
                                  fused=device.type == "cuda")
    step, steps, log, spent, trained = 0, settings.steps, [], 0.0, 0
    if resumed:
        for name, parameter in parameters.items():
            parameter.data.copy_(resumed["parameters"][name])
        optimizer.load_state_dict(resumed["optimizer"])
        step, steps, log = resumed["step"], settings.steps or resumed["steps"], resumed["log"]
        spent, trained = resumed["seconds"], resumed["tokens"]
        tell(f"resuming at step {step} of {steps}")
    kept = {"identity": run, "draft_ids": ids}          # in every checkpoint
    on_device = ids.to(device)
    head = model.lm_head.weight.to(settings.autocast or model.dtype)
    model.train()
    batches: list[Tensor] = []
    per_epoch = len(data.order(0, settings.batch, settings.seed))
    autocast = (lambda: torch.autocast(device.type, settings.autocast)) if settings.autocast else contextlib.nullcontext
    began = saved = time.time()
    running, marks = [], []
    while steps is None or step < steps:
        epoch, at = divmod(step, per_epoch)
        if not batches or at == 0:
            batches = data.order(epoch, settings.batch, settings.seed)
        if steps is None:
            marks.append(time.time())
            if len(marks) == TIMING_STEPS:          # the first steps are slow; nine later ones tell the speed
                steps = max(step + 1, int(settings.seconds / ((marks[-1] - marks[2]) / (TIMING_STEPS - 3))))
        rate = recipe.rate * _schedule(step, steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = data.gather(batches[at])
        trained += int(batch[3].sum())
        with autocast():
            value = loss(model, recipe, head, on_device, batch)
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        running.append(value.detach())
        step += 1
        if steps is not None and (step == steps or step % max(1, steps // settings.evaluations) == 0):
            model.eval()
            scores = score(model, on_device, target, *held)
            model.train()
            entry = {"step": step, "tokens": trained, "loss": float(torch.stack(running).mean()), "rate": rate,
                     "held_out_tokens_per_verification": tokens_per_verification(scores, 4),
                     "held_out_agreement": _mean([h for s in scores for h in s.hits[0]]),
                     "held_out_overlap": _mean([o for s in scores for o in s.overlap]),
                     "seconds": spent + time.time() - began}
            log.append(entry)
            running = []
            tell(_bar(entry, steps, per_epoch))
        if time.time() - saved > settings.checkpoint_seconds and steps is not None:
            saved = time.time()
            _checkpoint(folder, kept, parameters, optimizer, step, steps, log, spent + saved - began, trained)
    _checkpoint(folder, kept, parameters, optimizer, step, steps, log, spent + time.time() - began, trained)
    return model.eval(), log


def _schedule(step: int, steps: int | None) -> float:
    """Share of the peak rate: up over the first 4 %, then down to zero. Length still unknown: a careful start."""
    if steps is None:
        return .02 * (step + 1)
    warm = max(1, int(WARM_UP * steps))
    return min((step + 1) / warm, (steps - step) / max(1, steps - warm))


def _checkpoint(folder: Path, kept: dict, parameters, optimizer, step: int, steps: int | None, log: list[dict],
                seconds: float, trained: int) -> None:
    with writing(folder / CHECKPOINT) as part:
        torch.save({**kept, "parameters": {n: p.detach() for n, p in parameters.items()},
                    "optimizer": optimizer.state_dict(), "step": step, "steps": steps, "log": log, "seconds": seconds,
                    "tokens": trained}, part)


def _bar(entry: dict, steps: int, per_epoch: int) -> str:
    done = int(20 * entry["step"] / steps)
    left = entry["seconds"] / entry["step"] * (steps - entry["step"])
    return (f"[{'#' * done}{'.' * (20 - done)}] step {entry['step']}/{steps} (epoch {entry['step'] / per_epoch:.1f})  "
            f"loss {entry['loss']:.4f}  held out: {entry['held_out_tokens_per_verification']:.3f} tokens per "
            f"verification, agreement {entry['held_out_agreement']:.3f}, sum min(p, q) "
            f"{entry['held_out_overlap']:.3f}  {left / 60:.1f} min left")


def _mean(values: list) -> float:
    return sum(values) / max(1, len(values))


def write_log(path: Path, facts: dict, log: list[dict]) -> None:
    """``facts`` (seed, data hash, recipe) and the log beside the weights, as one JSON file that appears whole."""
    save_json(path, {**facts, "log": log})
