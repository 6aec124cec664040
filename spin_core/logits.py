"""What requests ask of the target's logits beside sampling: a model's own penalties, and log-probabilities.

transformers' ``generate`` applies repetition penalty, forbidden n-grams and suppressed tokens to the logits behind the
text so far. Under speculation the logits behind a drafted token are adjusted for the text *with* the drafted tokens
before it, so p is at every position what plain decoding would use, and the output distribution stays exactly the same.
Drafters draft without them: that costs acceptance, never text.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from spin_core.draft import Draft, Tree
from spin_core.request import Request, SamplingParams
from spin_core.sampling import SamplingBatch, probabilities

# settings of a generation config that change a greedy text and are not applied here, with the values that do nothing
NOT_SERVED = {"min_length": 0, "min_new_tokens": 0, "bad_words_ids": (), "sequence_bias": (), "num_beams": 1,
              "forced_bos_token_id": None, "forced_eos_token_id": None, "begin_suppress_tokens": (),
              "exponential_decay_length_penalty": None, "encoder_repetition_penalty": 1.0, "penalty_alpha": 0.0,
              "encoder_no_repeat_ngram_size": 0, "guidance_scale": 1.0, "watermarking_config": None}


SPREAD = 0x1E3779B97F4A7C15    # between the seeds of a prompt's samples: far from any that a user counts up


def resolve(params: SamplingParams | None, model, seeds: Iterator[int]) -> SamplingParams:
    """One request's parameters: the model's own settings, and the next of ``seeds``, where the caller gave none.

    Raises TypeError for ``params`` that are none, ValueError for more than one sample.
    """
    params = SamplingParams() if params is None else params
    if not isinstance(params, SamplingParams):
        raise TypeError(f"Engine.submit: params must be a SamplingParams or None, got {params!r}")
    if params.n != 1:
        raise ValueError("Engine.submit: one request is one sample; generate and stream serve n of them")
    config = getattr(model, "generation_config", None)
    given = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "suppress_tokens": ()}
    missing = {name: getattr(config, name, None) or neutral for name, neutral in given.items()
               if getattr(params, name) is None}
    if params.seed is None:
        missing["seed"] = next(seeds)
    return params.with_(**missing) if missing else params


def samples(params: SamplingParams) -> list[SamplingParams]:
    """Parameters of the ``n`` samples, one for each; where a seed is given, each has a seed of its own."""
    if getattr(params, "n", 1) == 1:
        return [params]
    seeds = [params.seed if params.seed is None else (params.seed + i * SPREAD) % 2**63 for i in range(params.n)]
    return [params.with_(n=1, seed=seed) for seed in seeds]


def check_model(model) -> None:
    """Raise ValueError, naming them, for settings of the model that would change a text and are not applied."""
    config = getattr(model, "generation_config", None)
    found = {name: getattr(config, name, None) for name, neutral in NOT_SERVED.items()}
    wrong = [f"{name}={value!r}" for name, value in found.items() if value and value != NOT_SERVED[name]]
    if wrong:
        raise ValueError(f"the model's generation_config sets {', '.join(wrong)}, which is not applied here: set it to "
                         "None there (model.generation_config) to serve the model without it")


def adjust(logits: Tensor, draft: Draft, requests: Sequence[Request]) -> Tensor:
    """The logits ``[N + B, V]`` behind each request's text and each of its drafted tokens, request by request, as the
    verifiers take them, adjusted for each request's settings. The input is not changed."""
    if not any(r.params.adjusts_logits for r in requests):
        return logits
    logits = logits.clone()
    tokens, row = draft.tokens.tolist(), 0
    for b, (request, start, end) in enumerate(zip(requests, draft.cu.tolist(), draft.cu[1:].tolist())):
        drafted = tokens[start:end]
        parents = draft.parents[start:end].tolist() if isinstance(draft, Tree) else range(-1, len(drafted) - 1)
        if request.params.adjusts_logits:
            texts = [request.ids]
            for token, parent in zip(drafted, parents):
                texts.append(texts[parent + 1] + [token])
            for i, text in enumerate(texts):
                adjust_row(logits[row + i], text, request.params)
        row += 1 + len(drafted)
    return logits


def adjust_row(logits: Tensor, ids: list[int], params: SamplingParams) -> None:
    """Adjust ``logits [V]`` behind the text ``ids``, in place, in the order of transformers' ``generate``."""
    if params.repetition_penalty not in (None, 1.0):
        seen = torch.tensor(sorted(set(ids)), device=logits.device)
        scores = logits[seen]
        logits[seen] = torch.where(scores < 0, scores * params.repetition_penalty, scores / params.repetition_penalty)
    banned = [i for i in params.suppress_tokens or () if i < len(logits)]
    if params.no_repeat_ngram_size:
        known = params.no_repeat_ngram_size - 1         # what follows the last `known` tokens wherever they stood
        last = ids[len(ids) - known:]
        banned += [ids[i + known] for i in range(len(ids) - known) if ids[i:i + known] == last]
    logits[banned] = -torch.inf


def log_probs(logits: Tensor, path: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """The log-probability of each of a request's ``tokens`` under the target.

    ``logits [R, V]`` begins with the request's rows: behind its text, and behind each of its drafted tokens or nodes.
    ``path``: which of the drafted were accepted, in order.
    """
    rows = logits[[0, *(1 + node for node in path)][:len(tokens)]]
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32)).log_softmax(-1)
    return rows[range(len(rows)), tokens].tolist()


def distributions(draft: Draft, logits: Tensor, sampling: SamplingBatch, b: int) -> dict[str, Tensor]:
    """p ``[g + 1, V]`` and q ``[g, V]`` at the positions that request b drafted, both over the target's ids."""
    first, last = int(draft.cu[b]), int(draft.cu[b + 1])
    rows = torch.full((last - first + 1,), b, device=logits.device)
    p = probabilities(logits[first + b:last + b + 1], sampling.rows(rows))
    q = [draft.distribution(token, row, p.shape[1]).to(p) for token, row in
         zip(draft.tokens[first:last].tolist(), draft.prob_row[first:last].tolist())]
    return {"p": p, "q": torch.stack(q) if q else p[:0]}
