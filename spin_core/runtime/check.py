"""A model is compared with itself when it is loaded: a short text through the library's code, and through ours.

What an architecture does differently, in a release of tomorrow too, shows here as a difference, not in a user's text.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from spin_core.runtime.library import call

LENGTH, FIRST = 24, 17      # tokens of the text; of its first chunk, which has the length of a prompt
STATE = "keeps a recurrent state, and taking rejected drafts back would need snapshots of it"
WIDTH = 5                   # keys per piece, where requests are cut
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
    try:
        out = call(model, torch.tensor(tokens, device=model.device), past, 0)
    except Exception as error:
        if chooser := next((name for name, m in model.named_modules() if type(m).__name__.endswith("Indexer")), ""):
            layer = next((part for part in chooser.split(".") if part.isdecimal()), "?")
            raise NotImplementedError(f"layer {layer} chooses by an indexer which tokens it attends to, and keeps the "
                                      "indexer's keys beside a key and a value per token") from error
        raise
    shapes = []
    for index, layer in enumerate(past.layers):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is None or values is None or keys.dim() != 4 or keys.shape[2] != length or values.shape[2] != length:
            raise NotImplementedError(f"layer {index} keeps something else of its past than a key and a value per "
                                      "token")
        shapes.append((keys.shape[1], keys.shape[3], values.shape[3]))
    return tokens, out.logits[0], shapes


def refuse_states(model: PreTrainedModel) -> None:
    """Raise NotImplementedError for layers whose past is a state, or compressed, and not a list of keys and values."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or []
    for index, kind in enumerate(kinds):
        if "compressed" in kind:
            raise NotImplementedError(f"layer {index} is of the kind {kind}: it attends to a compressed past, which is "
                                      "not a key and a value per token")
        if not any(word in kind for word in ("attention", "dense", "moe", "sparse")) or "linear" in kind:
            raise NotImplementedError(f"layer {index} is of the kind {kind}: it {STATE}")
    if getattr(model, "_is_stateful", False):
        raise NotImplementedError(f"it {STATE}")


class Contradiction(NotImplementedError):
    """The library's own code does not agree with itself, so there is no text to be equal to."""


@torch.inference_mode()
def refuse_parts(model: PreTrainedModel, tokens: list[int], expected: Tensor) -> None:
    """Raise Contradiction where the library reads a short part, or a single token, of the text otherwise than all of it
    at once: in some releases a model drops its mask then."""
    past, parts = DynamicCache(), torch.tensor(tokens[:4], device=model.device).split([min(3, len(tokens) - 1), 1])
    found = torch.cat([call(model, part, past, start).logits[0] for part, start in zip(parts, (0, len(parts[0])))])
    apart = float(_apart(found, expected[:len(found)]).max() / _largest(expected))
    if not apart <= TOLERANCE.get(expected.dtype, 1e-1):
        raise Contradiction(f"the library's code reads a text in parts otherwise than at once, by {apart:.1e} of the "
                            "largest logit")


def refuse_forgetful(model: PreTrainedModel, windows: dict[int, int | None], max_len: int) -> None:
    """Raise Contradiction where the library's cache forgets, in ``max_len`` tokens, some that its mask still shows.
    ``windows``: by layer, how many tokens the mask shows, None for all."""
    for index, layer in enumerate(DynamicCache(config=model.config.get_text_config(decoder=True)).layers):
        kept = getattr(layer, "sliding_window", None) if getattr(layer, "is_sliding", False) else None
        if kept and kept < max_len and windows.get(index, 0) is None:
            raise Contradiction(f"layer {index} shows a token all of its past, but the library's cache keeps {kept} "
                                "tokens")


def difference(forward: Callable, truncate: Callable[[int, int], None], ways: dict[str, object], slots: int,
               tokens: list[int], expected: Tensor) -> tuple[float, str]:
    """The largest difference between our logits and ``expected [T, V]``, relative to the largest logit, and where it
    is: in a prompt, or in drafted tokens that are attended in one of the ``ways``, by name.

    Two requests (one after the other where there is one slot) read the first chunk and drafts that are taken back;
    then, in every way, one reads the text's last tokens as a chain, the other as many nodes of a token tree.
    ``forward(way, texts, trees, rows)`` reads tokens in the first slots and gives the logits of these rows;
    ``truncate(slot, n)`` forgets all but n tokens.
    """
    first, last, wrong = tokens[:FIRST], tokens[FIRST:], tokens[::-1][:3]
    size = len(last)
    tree = torch.ones(size, size, dtype=torch.bool).tril()          # a node with a child; beside them the text
    tree[2:, :2] = False
    chain, branches = (last, None, range(size)), (wrong[:2] + last[:-2], tree, range(2, size))
    passes = [[chain, branches]] if slots > 1 else [[chain], [branches]]
    together = range(len(passes[0]))
    read = forward(next(iter(ways.values())), [first + wrong for _ in together], [None for _ in together], range(FIRST))
    found = {"prompts": _apart(read, expected[:FIRST])}
    for name, way in ways.items():
        rows = []
        for requests in passes:
            for slot in together:
                truncate(slot, FIRST)
            wanted = [b * size + row for b, (_, _, known) in enumerate(requests) for row in known]
            read = forward(way, [text for text, _, _ in requests], [mask for _, mask, _ in requests], wanted)
            rows.append(_apart(read, torch.cat([expected[FIRST:][:len(known)] for _, _, known in requests])))
        found[f"drafts, {name}"] = torch.cat(rows)
    # in half precision a router may choose another expert for a token: then most tokens must agree, not all
    half = expected.dtype in (torch.float16, torch.bfloat16)
    worst = {name: float((rows.median() if half and rows.isfinite().all() else rows.max()) / _largest(expected))
             for name, rows in found.items()}
    where = max(worst, key=lambda name: torch.inf if worst[name] != worst[name] else worst[name])
    return worst[where], where


def _largest(logits: Tensor) -> Tensor:
    return logits.nan_to_num(0, 0, 0).abs().max().clamp(min=1e-30)


def _apart(mine: Tensor, theirs: Tensor) -> Tensor:
    """How far apart they are, ``[rows]``: an entry counts 0 where both are the same infinity (a token that a model
    forbids), or where theirs is NaN (damaged weights: the library's masks spread NaN even to the tokens before)."""
    theirs = theirs[:, :mine.shape[1]]
    same = (mine == theirs) | theirs.isnan()
    return (mine - theirs).abs().masked_fill(same, 0).amax(1).float()
