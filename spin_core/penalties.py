"""The settings of a model that act on its logits: repetition penalty, forbidden n-grams, suppressed tokens.

transformers' ``generate`` applies them to the logits behind the text so far. Under speculation the logits behind a drafted
token are adjusted for the text *with* the drafted tokens before it, so p is at every position what plain decoding would
use, and the output distribution stays exactly the same. Drafters draft without them: that costs acceptance, never text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spin_core.draft import Draft, Tree
from spin_core.request import Request, SamplingParams

# settings of a generation config that change a greedy text and are not applied here, with the values that do nothing
NOT_SERVED = {"min_length": 0, "min_new_tokens": 0, "bad_words_ids": (), "sequence_bias": (), "forced_bos_token_id": None,
              "forced_eos_token_id": None, "begin_suppress_tokens": (), "exponential_decay_length_penalty": None,
              "encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0, "guidance_scale": 1.0,
              "watermarking_config": None, "num_beams": 1, "penalty_alpha": 0.0}


def with_defaults(params: SamplingParams, model) -> SamplingParams:
    """``params`` with the model's own settings where the caller gave none (None)."""
    config = getattr(model, "generation_config", None)
    given = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "suppress_tokens": ()}
    return params.with_(**{name: getattr(config, name, None) or neutral for name, neutral in given.items()
                           if getattr(params, name) is None})


def check_model(model) -> None:
    """Raise ValueError, naming them, for settings of the model that would change a text and are not applied."""
    config = getattr(model, "generation_config", None)
    found = {name: getattr(config, name, None) for name, neutral in NOT_SERVED.items()}
    wrong = [f"{name}={value!r}" for name, value in found.items() if value and value != NOT_SERVED[name]]
    if wrong:
        raise ValueError(f"the model's generation_config sets {', '.join(wrong)}, which is not applied here: set it to None "
                         "there (model.generation_config) to serve the model without it")


def adjusts(params: SamplingParams) -> bool:
    """Whether any of the settings does something."""
    return params.repetition_penalty != 1.0 or params.no_repeat_ngram_size > 0 or bool(params.suppress_tokens)


def adjust(logits: Tensor, draft: Draft, requests: Sequence[Request]) -> Tensor:
    """The logits ``[N + B, V]`` behind each request's text and each of its drafted tokens, request by request, as the
    verifiers take them, adjusted for each request's settings. The input is not changed."""
    if not any(adjusts(r.params) for r in requests):
        return logits
    logits = logits.clone()
    tokens, row = draft.tokens.tolist(), 0
    for b, (request, start, end) in enumerate(zip(requests, draft.cu.tolist(), draft.cu[1:].tolist())):
        drafted = tokens[start:end]
        parents = draft.parents[start:end].tolist() if isinstance(draft, Tree) else range(-1, len(drafted) - 1)
        if adjusts(request.params):
            texts = [request.ids]
            for token, parent in zip(drafted, parents):
                texts.append(texts[parent + 1] + [token])
            for i, text in enumerate(texts):
                adjust_row(logits[row + i], text, request.params)
        row += 1 + len(drafted)
    return logits


def adjust_row(logits: Tensor, ids: list[int], params: SamplingParams) -> None:
    """Adjust ``logits [V]`` behind the text ``ids``, in place, in the order of transformers' ``generate``."""
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(ids)), device=logits.device)
        scores = logits[seen]
        logits[seen] = torch.where(scores < 0, scores * params.repetition_penalty, scores / params.repetition_penalty)
    banned = list(params.suppress_tokens)
    if params.no_repeat_ngram_size:
        known = params.no_repeat_ngram_size - 1         # what follows the last `known` tokens wherever they stood
        last = ids[len(ids) - known:]
        banned += [ids[i + known] for i in range(len(ids) - known) if ids[i:i + known] == last]
    logits[banned] = -torch.inf
