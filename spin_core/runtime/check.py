"""A model is compared with itself when it is loaded: a short text through the library's code, and through ours.

What an architecture does differently, in a release of tomorrow too, shows here as a difference, not in a user's text.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from spin_core.runtime.library import call

LENGTH, FIRST = 12, 5       # tokens of the text; of its first chunk
TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}
#           float64 too: the library's plain attention takes its softmax in single precision


@torch.inference_mode()
def own_logits(model: PreTrainedModel, length: int = LENGTH) -> tuple[list[int], Tensor, list[tuple[int, int, int]]]:
    """A random text, its logits ``[length, V]`` by the library's own code, and per layer of its cache the kv heads and
    the widths of a key and a value.

    Raises NotImplementedError for a model that keeps anything but keys and values of its past.
    """
    refuse_states(model)
    vocab = model.get_input_embeddings().weight.shape[0]
    tokens = torch.randint(vocab // 8, vocab, (length,), generator=torch.Generator().manual_seed(0)).tolist()
    past = DynamicCache()
    out = call(model, torch.tensor(tokens, device=model.device), past, 0)
    shapes = []
    for index, layer in enumerate(past.layers):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is None or values is None or keys.dim() != 4 or keys.shape[2] != length or values.shape[2] != length:
            raise NotImplementedError(f"layer {index} keeps something else of its past than a key and a value per token")
        shapes.append((keys.shape[1], keys.shape[3], values.shape[3]))
    return tokens, out.logits[0], shapes


def refuse_states(model: PreTrainedModel) -> None:
    """Raise NotImplementedError for layers whose past is a state, or compressed, and not a list of keys and values."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or []
    for index, kind in enumerate(kinds):
        if "compressed" in kind:
            raise NotImplementedError(f"layer {index} is of the kind {kind}: it attends to a compressed past, which is "
                                      "not a key and a value per token")
        if not any(word in kind for word in ("attention", "dense", "moe", "sparse")) or "linear" in kind:
            raise NotImplementedError(f"layer {index} is of the kind {kind}: it keeps a recurrent state, and taking "
                                      "rejected drafts back would need snapshots of it")


class Contradiction(NotImplementedError):
    """The library's own code does not agree with itself, so there is no text to be equal to."""


def refuse_forgetful(model: PreTrainedModel, windows: dict[int, int | None], max_len: int) -> None:
    """Raise Contradiction where the library's cache forgets, in ``max_len`` tokens, some that its mask still shows. ``windows``: by
    layer, how many tokens the mask shows, None for all."""
    for index, layer in enumerate(DynamicCache(config=model.config.get_text_config(decoder=True)).layers):
        kept = getattr(layer, "sliding_window", None) if getattr(layer, "is_sliding", False) else None
        if kept and kept < max_len and windows.get(index, 0) is None:
            raise Contradiction(f"layer {index} shows a token all of its past, but the library's cache keeps {kept} tokens")


def difference(forward: Callable, truncate: Callable[[int], None], tokens: list[int], expected: Tensor) -> float:
    """The largest difference between our logits and ``expected [T, V]``, relative to the largest logit.

    Ours come in a first chunk; behind it drafted tokens are read and taken back; then a token tree, and a last chunk.
    ``forward(tokens, rows, ancestors)`` reads tokens of one request, ``truncate(n)`` forgets all but n of them.
    """
    first, wrong, length = FIRST, tokens[::-1][:3], len(tokens)
    found = [forward(tokens[:first], list(range(first)), None)]
    forward(wrong, [0], None)
    truncate(first)
    tree = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 1]]).bool()       # two roots, a child each
    branch = forward([wrong[0], tokens[first], tokens[first + 1], wrong[1]], [1, 2], tree)
    truncate(first)
    found.append(forward(tokens[first:], list(range(length - first)), None))
    ours = torch.cat(found)
    pairs = [(ours, expected[:, :ours.shape[1]]), (branch, expected[first:first + 2, :ours.shape[1]])]
    worst = torch.cat([_apart(mine, theirs).amax(1) for mine, theirs in pairs]).float()
    if not worst.isfinite().all():
        return float("inf")
    # in half precision a router may choose another expert for a token: then most tokens must agree, not all
    most = worst.median() if expected.dtype in (torch.float16, torch.bfloat16) else worst.max()
    return float(most / expected.nan_to_num(0, 0, 0).abs().max().clamp(min=1e-30))


def _apart(mine: Tensor, theirs: Tensor) -> Tensor:
    """How far apart they are, entry by entry: 0 where both are the same infinity (a token that a model forbids), or
    where theirs is NaN (damaged weights: the library's masks spread NaN even to the tokens before)."""
    same = (mine == theirs) | theirs.isnan()
    return (mine - theirs).abs().masked_fill(same, 0)
