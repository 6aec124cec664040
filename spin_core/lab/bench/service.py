"""A service on small random models: requests that come over time, and the texts that they would have alone.

The models compute in float64: there, two texts are equal or they are not.
"""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from spin_core.engine import Engine
from spin_core.request import FinishReason, Request, SamplingParams
from spin_core.zoo import DraftModel

VOCAB, STOP = 64, 3
ALPHABET = "".join(map(chr, range(48, 48 + VOCAB)))
LIMITS = {"max_len": 32, "prefill_chunk": 12}       # of the engines that serve these requests


@dataclass(frozen=True)
class Job:
    """One request to come. ``drafter``: asked for by name, which fixes a sampled text; None: the engine chooses.
    ``patience``: tokens after which it is given up; None: never."""

    prompt: tuple[int, ...]
    params: SamplingParams
    drafter: str | None
    patience: int | None = None


Pairs = list[tuple[Request, Job]]


def jobs(count: int, seed: int, drafters: list[str], kinds: int = 100, sampled: list[str] | None = None) -> list[Job]:
    """Requests of so many kinds: prompts of 1 to 16 tokens, outputs of 1 to 12, greedy and sampled, stop tokens and
    strings. A tenth is given up. ``sampled``: drafters of sampled requests, where these are others."""
    rng, pool = random.Random(seed), []
    for number in range(kinds):
        greedy = rng.random() < .6
        params = SamplingParams(temperature=0.0 if greedy else rng.choice([.7, 1.0]), top_k=rng.choice([0, 5]),
                                max_new_tokens=rng.randint(1, 12), seed=number, stop_ids=rng.choice([None, ()]),
                                stop=tuple(rng.choices(ALPHABET, k=rng.choice([0, 0, 1]))))
        pool.append(Job(tuple(rng.choices(range(VOCAB), k=rng.randint(1, 16))), params,
                        rng.choice([None, None, *drafters]) if greedy else rng.choice(sampled or drafters)))
    return [replace(rng.choice(pool), patience=rng.randrange(4) if rng.random() < .1 else None) for _ in range(count)]


@dataclass
class Served:
    """What became of the jobs. ``queued``: the longest queue."""

    requests: list[Request] = field(default_factory=list)
    steps: int = 0
    queued: int = 0


def serve(engine: Engine, todo: list[Job], seed: int = 0, *, keep: bool = True,
          between: Callable[[int], None] = lambda submitted: None) -> Served:
    """Submit the jobs over time, one per step on average and in bursts, and serve them to their ends.

    ``keep`` False forgets finished requests. ``between(submitted)`` is called before each step.
    """
    served, rng, waiting, here = Served(), random.Random(seed), list(todo)[::-1], {}
    while waiting or here:
        for _ in range(min(len(waiting), rng.choice([0, 0, 0, 0, 1, 1, 2, 9]))):
            job = waiting.pop()
            request = engine.submit(list(job.prompt), job.params, drafter=job.drafter)
            here[request] = job
            if keep:
                served.requests.append(request)
        between(len(todo) - len(waiting))
        engine.step()
        served.steps += 1
        served.queued = max(served.queued, len(engine.queue))
        for request, job in list(here.items()):
            if job.patience is not None and len(request.output_ids) >= job.patience:
                engine.cancel(request)
            if request.finished:
                del here[request]
    return served


def differences(family, pairs: Pairs) -> tuple[int, int]:
    """How many texts are not those of requests served alone, and how many there are. What was given up must be the
    beginning of its text."""
    alone, texts, wrong = Engine(family, "none", max_batch=1, **LIMITS), {}, 0
    for request, job in pairs:
        # greedy text is the target's own, whichever drafter serves; sampled text depends on its drafter
        kind = job.prompt, job.params, "none" if job.params.greedy else job.drafter
        if kind not in texts:
            texts[kind], = alone.generate([list(job.prompt)], job.params, drafter=kind[2])
        text, whole = texts[kind], request.finish_reason is not FinishReason.CANCELLED
        got, expected = request.output_ids, text.output_ids
        wrong += request.error is not None or not (
            got == expected and request.finish_reason is text.finish_reason and request.text == text.text if whole
            else got == expected[:len(got)])
    return wrong, len(pairs)


@dataclass
class SmallFamily:
    """What the engine needs of a family; a token is a character."""

    target: torch.nn.Module
    drafters: dict[str, DraftModel]
    vocab_size: int = VOCAB
    stop_ids: tuple[int, ...] = (STOP,)
    max_context: int = 128

    def decode(self, ids: list[int]) -> str:
        return "".join(ALPHABET[i] for i in ids)


def llama(vocab: int, hidden: int, layers: int, heads: int, kv_heads: int, *, context: int = 512, seed: int = 0,
          **options) -> torch.nn.Module:
    """A random Llama that knows no special tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(vocab_size=vocab, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                 num_key_value_heads=kv_heads, max_position_embeddings=context, bos_token_id=None, eos_token_id=None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**sizes, **{"intermediate_size": 1536} | options)).eval()


def disturbed(model: torch.nn.Module, by: float, seed: int) -> torch.nn.Module:
    """A copy whose weights are off by about ``by`` of their spread: as a drafter it agrees often, but not always."""
    out, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in out.parameters():
            if weight.numel() > 1:
                weight += by * weight.std() * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return out


def small(drafters: int = 1) -> SmallFamily:
    """A random Llama of one layer in float64, and a disturbed copy of it that drafts well, under so many names."""
    target = llama(VOCAB, 32, 1, 4, 2, context=128, intermediate_size=48, initializer_range=.2).double()
    close, names = disturbed(target, .1, 1), ["close", *(f"close-{n}" for n in range(2, drafters + 1))]
    return SmallFamily(target, {name: DraftModel(name, close, None, 128) for name in names})
