"""The pool: which drafters there are, how each is cut out of the target, and how it is written to a file."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel

from spin_core.distill.corpus import Shard, save_whole
from spin_core.draft.fed import FedLlama


@dataclass(frozen=True)
class Recipe:
    """One drafter of the pool.

    ``layers`` it has, ``vocab`` ids it may draft; ``fed``: it also reads the target's states. ``rate`` is the peak
    learning rate. ``depth``: how many tokens ahead a fed drafter is trained to run on its own states. ``begins``: the
    drafter, made by the same script, whose weights and draft vocabulary it begins with instead of the target's layers.
    """

    layers: int
    vocab: int
    rate: float
    fed: bool = False
    depth: int = 1
    begins: str | None = None


RECIPES = {
    "pruned-1L-4k": Recipe(1, 4096, 1.5e-3),
    "pruned-2L-8k": Recipe(2, 8192, 1e-3),
    "pruned-4L-8k": Recipe(4, 8192, 1e-3),
    "fed-1L-8k": Recipe(1, 8192, 8e-4, fed=True, depth=3),
    "fed-2L-8k": Recipe(2, 8192, 6e-4, fed=True, depth=3, begins="pruned-2L-8k"),
}


def draft_vocabulary(shard: Shard, size: int, vocab_size: int, stop_ids: tuple[int, ...]) -> Tensor:
    """The ``size`` most frequent ids of the answers, ascending; stop ids are always among them. ``[size]`` int64."""
    position = torch.arange(len(shard.tokens)) - shard.starts.repeat_interleave(shard.lengths.long())
    answer = position >= shard.prompt_lengths.repeat_interleave(shard.lengths.long())
    counts = torch.bincount(shard.tokens[answer].long(), minlength=vocab_size)
    counts[list(stop_ids)] = counts.max() + 1
    return counts.sort(descending=True, stable=True).indices[:min(size, vocab_size)].sort().values


def source_layers(recipe: Recipe, total: int) -> list[int]:
    """Which of the target's ``total`` layers the drafter begins as: its ends, which read and write the embedding's
    space."""
    if recipe.layers > total:
        raise ValueError(f"a drafter of {recipe.layers} layers cannot be cut out of a target of {total}")
    front = (recipe.layers + 1) // 2
    return list(range(front)) + list(range(total - recipe.layers + front, total))


def prune(target: PreTrainedModel, recipe: Recipe, ids: Tensor) -> LlamaForCausalLM:
    """A drafter around ``target``'s embedding and its head's rows at ``ids``, both frozen; the rest is a copy."""
    chosen = source_layers(recipe, target.config.num_hidden_layers)
    config = copy.deepcopy(target.config)
    config.num_hidden_layers, config.tie_word_embeddings = len(chosen), False
    with torch.device("meta"):
        model = (FedLlama if recipe.fed else LlamaForCausalLM)(config)
    body, origin = model.model, target.model
    body.embed_tokens, body.rotary_emb = origin.embed_tokens, copy.deepcopy(origin.rotary_emb)
    body.norm = copy.deepcopy(origin.norm)
    for i, layer in enumerate(chosen):
        weights = {name: w.clone() for name, w in origin.layers[layer].state_dict().items()}
        body.layers[i].load_state_dict(weights, assign=True)
    model.lm_head = nn.Linear(config.hidden_size, len(ids), bias=False, device="meta")
    model.lm_head.weight = nn.Parameter(target.get_output_embeddings().weight[ids.to(target.device)].detach().clone())
    if recipe.fed:                  # begin as the same drafter unfed
        model.feed.weight = nn.Parameter(torch.zeros(config.hidden_size, config.hidden_size, device=target.device))
    model.requires_grad_(False)
    for parameter in own_parameters(model).values():
        parameter.requires_grad_(True)
    return model


def own_parameters(model: LlamaForCausalLM) -> dict[str, nn.Parameter]:
    """What a drafter does not borrow from the target, under the names its file uses."""
    names = {name.removeprefix("model."): p for name, p in model.named_parameters()
             if name.startswith(("model.layers.", "model.norm.", "feed."))}
    return dict(sorted(names.items()))


def save(path: Path, model: LlamaForCausalLM, ids: Tensor, metadata: dict[str, str]) -> None:
    """bf16 safetensors: ``layers.<i>.*``, ``norm.weight``, ``draft_ids``, and ``feed.weight`` if it is fed."""
    tensors = {name: p.detach().to("cpu", torch.bfloat16).contiguous() for name, p in own_parameters(model).items()}
    save_whole(path, {**tensors, "draft_ids": ids.to("cpu", torch.int32)}, metadata)
