"""The pool: which drafters there are, and what each begins as."""

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spin_core.lab.distill import fused
from spin_core.lab.distill.reading import Reader, Text
from spin_core.zoo.fed import LAST

FITTED = 120        # texts for the least squares at the beginning


@dataclass(frozen=True)
class Recipe:
    """One drafter of the pool.

    It has ``layers`` and may draft ``vocab`` ids. ``form``: "plain" reads tokens alone, "fed" also the target's states
    (:class:`spin_core.zoo.fed.FedLlama`), "eagle3" is a head as EAGLE-3 has it
    (:class:`spin_core.zoo.eagle3.Eagle3Llama`). ``reads``: the layers of the target whose inputs it reads. ``depth``:
    how many tokens ahead it is trained to run on its own states. ``rate``: the learning rate. ``kind``: the kind of
    text that it learns from, None for all.

    What SPIRe (arXiv 2504.06419) is made of, part by part. ``window``: the tokens its attention sees beside the first,
    None for all. ``carry``: what a fed drafter reads of drafted tokens ("mix" is the feedback memory). ``pruned``:
    False begins with random layers. ``overlap``: the share of acceptance in the loss. ``hard``: learn the tokens that
    came, not the target's distribution.
    """

    layers: int = 1
    vocab: int = 8192
    depth: int = 3
    rate: float = 1e-3
    kind: str | None = None
    form: str = "fed"
    reads: tuple[int, ...] = (2, 15, LAST)
    window: int | None = None
    carry: str = "last"
    pruned: bool = True
    overlap: float = 0.5
    hard: bool = False

    def describe(self) -> str:
        """One line for the zoo."""
        text = f"{self.layers} layer{'s' * (self.layers > 1)} of the target, distilled"
        text += f" on {self.kind}" if self.kind else ""
        if self.form != "plain":
            text += ", an EAGLE-3 head" if self.form == "eagle3" else ""
            text += f", fed with {'one' if len(self.reads) == 1 else len(self.reads)} of the target's states"
        text += ", with a feedback memory" if self.carry == "mix" else ""
        return text + (f", seeing {self.window} tokens back" if self.window else "")


PLAIN, FED = Recipe(form="plain", reads=(), depth=1), Recipe(reads=(LAST,))
SPIRE = Recipe(vocab=4096, reads=(LAST,), window=64, carry="mix")
# SPIRe without one part each, by the names of the paper's ablation
LADDER = {
    "SPIRe": SPIRE,
    "no sparse KV cache": replace(SPIRE, window=None),
    "random initialisation": replace(SPIRE, pruned=False),
    "hard-target loss": replace(SPIRE, hard=True, overlap=0.0),
    "distillation only": replace(SPIRE, overlap=0.0),
    "no feedback memory": replace(SPIRE, carry="nothing"),
    "also no target activations": replace(PLAIN, vocab=4096, window=64),
}


def rung_name(rung: str) -> str:
    """The drafter's name of a rung of the ladder."""
    return "spire" if rung == "SPIRe" else f"spire-{rung.replace(' ', '-')}"


RECIPES = {
    "pruned-1L-4k": replace(PLAIN, vocab=4096, rate=1.5e-3),
    "pruned-2L-8k": replace(PLAIN, layers=2),
    "fed-1L-4k": replace(FED, vocab=4096),
    "fed-4L-8k": replace(FED, layers=4),
    **{f"fed-{kind}": replace(FED, vocab=4096, kind=kind) for kind in ("code", "story", "facts")},
    # other forms at the same cost, to compare with
    "fed3-1L-4k": Recipe(vocab=4096),
    "eagle3-1L-4k": Recipe(vocab=4096, form="eagle3", reads=(2, 15, 27)),
    **{rung_name(rung): recipe for rung, recipe in LADDER.items()},
}


def source_layers(recipe: Recipe, total: int) -> list[int]:
    """Which of the target's ``total`` layers the drafter begins as: its ends, which read and write the embedding's
    space. A fed drafter begins as the last ones, which take up where its input, the state, comes from."""
    if recipe.layers > total:
        raise ValueError(f"a drafter of {recipe.layers} layers cannot be cut out of a target of {total}")
    front = (recipe.layers + 1) // 2 if recipe.form == "plain" else 0
    return [*range(front), *range(total - recipe.layers + front, total)]


def begin(name: str, recipe: Recipe, target: PreTrainedModel) -> dict[str, Tensor]:
    """A drafter's first weights, by the names of its file: some of the target's layers and its norm.

    What the target does not have :func:`fit` decides, but for the embedding's half of a head's projections, which is
    small and random.
    """
    generator = torch.Generator().manual_seed(int(hashlib.sha256(name.encode()).hexdigest()[:8], 16))
    given = {key: value.detach().float() for key, value in target.model.state_dict().items()}
    size, device = target.config.hidden_size, target.device

    def random(shape, scale: float = .02) -> Tensor:
        return scale * torch.randn(shape, generator=generator).to(device)

    out = {"norm.weight": given["norm.weight"].clone()}
    for layer, source in enumerate(source_layers(recipe, target.config.num_hidden_layers)):
        for part in fused.PARTS.values():
            if part != "hidden_norm":
                weight = given[f"layers.{source}.{part}.weight"].clone()
                if not recipe.pruned:
                    weight = torch.ones_like(weight) if weight.dim() == 1 else random(weight.shape)
                out[f"layers.{layer}.{part}.weight"] = weight
    if recipe.form == "plain":
        return out
    eye = torch.eye(size, device=device)
    out["fc.weight"] = torch.cat([torch.zeros(size, size * (len(recipe.reads) - 1), device=device), eye], 1)
    if recipe.form == "fed":
        out["fuse.weight"] = eye.repeat(1, 2)
        if recipe.carry == "mix":       # mostly the last layer's, until it has learned better
            out["mix"] = torch.tensor([0.0] * recipe.layers + [4.0], device=device)
        return out
    out["layers.0.hidden_norm.weight"] = out["layers.0.input_layernorm.weight"]
    out["layers.0.input_layernorm.weight"] = torch.ones(size, device=device)
    for part in "qkv":
        key = f"layers.0.self_attn.{part}_proj.weight"
        out[key] = torch.cat([random(out[key].shape), out[key]], 1)
    return out


@torch.no_grad()
def fit(recipe: Recipe, texts: list[Text], target: PreTrainedModel, vocab_size: int) -> dict[str, Tensor]:
    """``fuse``, or a head's ``fc``, by least squares: what the first of the drafter's layers read when it was the
    target's, from the states before and the token. Nothing for a drafter that is not fed, or begins at random.

    Each token counts by the inverse of its size, since the layer's norm divides by that; first tokens, whose states are
    gigantic, are left out. The last state alone is fitted for ``fuse``; ``fc`` begins as handing it on.
    """
    if recipe.form == "plain" or not recipe.pruned:
        return {}
    fed = recipe.form == "fed"
    read, first = ((LAST,) if fed else recipe.reads), target.config.num_hidden_layers - recipe.layers
    layers = tuple(sorted({first, *read} - {LAST}))
    reader = Reader(target, vocab_size, layers, compiled=False)
    size, device = reader.hidden, target.device
    width = size * (len(read) + fed)
    gram, cross = (torch.zeros(width, n, dtype=torch.float64, device=device) for n in (width, size))
    for text in texts[:FITTED]:
        tokens = text.tokens[None].long().to(device)
        kept = dict(zip((*layers, LAST), reader.states(tokens)[0].double().split(size, -1)))
        given = torch.cat([kept[layer][1:-1] for layer in read], -1)
        if fed:
            given = torch.cat([given, reader.embedding[tokens[0, 2:]].double()], -1)
        wanted = kept[first][2:]
        weight = wanted.square().mean(1, keepdim=True).rsqrt()
        gram += (weight * given).T @ (weight * given)
        cross += (weight * given).T @ (weight * wanted)
    gram.diagonal().mul_(1 + 1e-3)              # so few data do not fit noise
    return {"fuse.weight" if fed else "fc.weight": torch.linalg.solve(gram, cross).T.float()}
