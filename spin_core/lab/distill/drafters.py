"""The pool: which drafters there are, how each is cut out of the target, and how it is written to a file."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel

from spin_core.lab.distill.corpus import Shard, save_whole
from spin_core.lab.distill.states import States, fast_bf16
from spin_core.zoo.fed import FedLlama


@dataclass(frozen=True)
class Recipe:
    """One drafter of the pool.

    ``layers`` it has, ``vocab`` ids it may draft; ``fed``: it also reads the target's states. ``rate`` is the peak
    learning rate. ``depth``: how many tokens ahead a fed drafter is trained to run on its own states. ``begins``: the
    drafter, made by the same script, whose weights and draft vocabulary it begins with instead of the target's layers.

    What SPIRe (arXiv 2504.06419) is made of, part by part. ``window``: the tokens its attention sees beside the first,
    None for all. ``carry``: what a fed drafter reads of drafted tokens (:class:`spin_core.zoo.fed.FedLlama`; the
    "mix" is the feedback memory). ``pruned``: False begins with random layers. ``overlap``: the share of acceptance in
    the loss. ``hard``: learn the tokens that came, not the target's distribution.
    """

    layers: int
    vocab: int
    rate: float
    fed: bool = False
    depth: int = 1
    begins: str | None = None
    window: int | None = None
    carry: str = "last"
    pruned: bool = True
    overlap: float = 0.5
    hard: bool = False


SPIRE = Recipe(1, 4096, 1e-3, fed=True, depth=3, window=64, carry="mix")
# SPIRe without one part each, by the names of the paper's ablation
LADDER = {
    "SPIRe": SPIRE,
    "no sparse KV cache": replace(SPIRE, window=None),
    "random initialisation": replace(SPIRE, pruned=False),
    "hard-target loss": replace(SPIRE, hard=True, overlap=0.0),
    "distillation only": replace(SPIRE, overlap=0.0),
    "no feedback memory": replace(SPIRE, carry="nothing"),
    "also no target activations": replace(SPIRE, fed=False, depth=1, carry="last"),
}


def rung_name(rung: str) -> str:
    """The drafter's name of a rung of the ladder."""
    return "spire" if rung == "SPIRe" else f"spire-{rung.replace(' ', '-')}"


RECIPES = {
    "pruned-1L-4k": Recipe(1, 4096, 1.5e-3),
    "pruned-2L-8k": Recipe(2, 8192, 1e-3),
    "pruned-4L-8k": Recipe(4, 8192, 1e-3),
    "fed-1L-8k": Recipe(1, 8192, 6e-4, fed=True, depth=3),
    "fed-2L-8k": Recipe(2, 8192, 6e-4, fed=True, depth=3),
    **{rung_name(rung): recipe for rung, recipe in LADDER.items()},
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
    space. A fed drafter begins as the last ones, which take up where its input, the state, comes from."""
    if recipe.layers > total:
        raise ValueError(f"a drafter of {recipe.layers} layers cannot be cut out of a target of {total}")
    if recipe.fed and not recipe.begins:
        return list(range(total - recipe.layers, total))
    front = (recipe.layers + 1) // 2
    return list(range(front)) + list(range(total - recipe.layers + front, total))


def prune(target: PreTrainedModel, recipe: Recipe, ids: Tensor) -> LlamaForCausalLM:
    """A drafter around ``target``'s embedding and its head's rows at ``ids``, both frozen; the rest is a copy."""
    chosen = source_layers(recipe, target.config.num_hidden_layers)
    config = copy.deepcopy(target.config)
    config.num_hidden_layers, config.tie_word_embeddings = len(chosen), False
    config.window, config.carry = recipe.window, recipe.carry
    with torch.device("meta"):
        model = (FedLlama if recipe.fed else LlamaForCausalLM)(config)
    body, origin = model.model, target.model
    body.embed_tokens, body.rotary_emb = origin.embed_tokens, copy.deepcopy(origin.rotary_emb)
    body.norm = copy.deepcopy(origin.norm)
    for i, layer in enumerate(chosen):
        weights = {name: w.clone() for name, w in origin.layers[layer].state_dict().items()}
        if not recipe.pruned:
            weights = {name: torch.ones_like(w) if w.dim() == 1 else w.normal_(0, config.initializer_range)
                       for name, w in weights.items()}
        body.layers[i].load_state_dict(weights, assign=True)
    model.lm_head = nn.Linear(config.hidden_size, len(ids), bias=False, device="meta")
    model.lm_head.weight = nn.Parameter(target.get_output_embeddings().weight[ids.to(target.device)].detach().clone())
    if recipe.fed:                  # until it is fitted: the same drafter unfed
        eye = torch.eye(config.hidden_size, device=target.device, dtype=target.dtype)
        model.fuse.weight = nn.Parameter(torch.cat([torch.zeros_like(eye), eye], 1))
        if recipe.carry == "mix":   # mostly the last layer's, until it has learned better
            shares = torch.zeros(len(chosen) + 1, device=target.device, dtype=target.dtype)
            model.mix = nn.Parameter(shares.index_fill(0, torch.tensor(len(chosen), device=target.device), 4.0))
    model.requires_grad_(False)
    for parameter in own_parameters(model).values():
        parameter.requires_grad_(True)
    return model


@torch.inference_mode()
def fit_fuse(target: PreTrainedModel, recipe: Recipe, shard: Shard, states: States, most: int = 60_000) -> Tensor:
    """``fuse.weight`` ``[d, 2 d]`` by least squares: what the first of the drafter's layers read when it was the
    target's, from the state before and the token, over at most ``most`` tokens of the shard.

    Each token counts by the inverse of its size, since the layer's norm divides by that; first tokens, whose
    activations are gigantic and whose state before does not exist, are left out.
    """
    layer = source_layers(recipe, target.config.num_hidden_layers)[0]
    embedding = target.get_input_embeddings().weight
    size = embedding.shape[1]
    gram, cross = (torch.zeros(2 * size, n, dtype=torch.float64, device=target.device) for n in (2 * size, size))
    seen: list[Tensor] = []
    hook = target.model.layers[layer].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    try:
        for start, length in zip(shard.starts.tolist(), shard.lengths.tolist()):
            tokens = shard.tokens[start:start + length].long().to(target.device)
            with torch.autocast(target.device.type, torch.bfloat16, enabled=fast_bf16(target.device)):
                target.model(input_ids=tokens[None], use_cache=False)
            read = seen.pop()[0, 1:].double()
            given = torch.cat([states.hidden[start:start + length - 1].to(embedding), embedding[tokens[1:]]], 1)
            given = given.double()
            weight = read.pow(2).mean(1, keepdim=True).rsqrt()
            gram += (weight * given).T @ (weight * given)
            cross += (weight * given).T @ (weight * read)
            if start + length > most:
                break
    finally:
        hook.remove()
    gram.diagonal().mul_(1 + 1e-3)              # so few data do not fit noise
    return torch.linalg.solve(gram, cross).T.to(embedding.dtype)


def own_parameters(model: LlamaForCausalLM) -> dict[str, nn.Parameter]:
    """What a drafter does not borrow from the target, under the names its file uses."""
    names = {name.removeprefix("model."): p for name, p in model.named_parameters()
             if name.startswith(("model.layers.", "model.norm.", "fuse.", "mix"))}
    return dict(sorted(names.items()))


def save(path: Path, model: LlamaForCausalLM, ids: Tensor, metadata: dict[str, str]) -> None:
    """bf16 safetensors: ``layers.<i>.*``, ``norm.weight``, ``draft_ids``, and ``fuse.weight`` (and ``mix``) if it is
    fed. How it attends and what it carries on stand in the metadata."""
    tensors = {name: p.detach().to("cpu", torch.bfloat16).contiguous() for name, p in own_parameters(model).items()}
    ways = {} if model.config.window is None else {"window": str(model.config.window)}
    ways |= {} if model.config.carry == "last" else {"carry": model.config.carry}
    save_whole(path, {**tensors, "draft_ids": ids.to("cpu", torch.int32)}, metadata | ways)
