"""The engine under load: requests come over time and some are given up; nobody is lost, and memory stays flat.

The models are small and random, in float64: there texts are equal or they are not. Every text is compared with the one
that the request gets alone. Memory is what the process holds once the same service has run for a while: objects that
Python's collector tracks, and resident bytes.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from dataclasses import dataclass, field, replace

import torch

from spin_core.lab.bench import Bar, Report, positive
from spin_core.engine import Engine
from spin_core.request import FinishReason, Request, SamplingParams

DESCRIPTION = "requests that come over time, queue, and are given up: none lost, texts as if alone, memory flat"
VOCAB, STOP = 64, 3
ALPHABET = "".join(map(chr, range(48, 48 + VOCAB)))


def add_arguments(parser) -> None:
    parser.add_argument("--requests", type=positive, default=5000, help="(default 5000)")
    parser.add_argument("--compare", type=int, default=1000,
                        help="texts compared with those of requests alone (default 1000)")
    parser.add_argument("--batch", type=positive, default=16, help="requests that run at once (default 16)")
    parser.add_argument("--seed", type=int, default=0)


@dataclass(frozen=True)
class Job:
    """One request to come. ``drafter``: asked for by name, which fixes a sampled text; None: the engine chooses.
    ``patience``: tokens after which it is given up; None: never."""

    prompt: tuple[int, ...]
    params: SamplingParams
    drafter: str | None
    patience: int | None = None


def jobs(count: int, seed: int, drafters: list[str], kinds: int = 100) -> list[Job]:
    """Requests of so many kinds: prompts of 1 to 16 tokens, outputs of 1 to 12, greedy and sampled, stop tokens and
    strings. A tenth is given up."""
    rng, pool = random.Random(seed), []
    for number in range(kinds):
        greedy = rng.random() < .6
        params = SamplingParams(temperature=0.0 if greedy else rng.choice([.7, 1.0]), top_k=rng.choice([0, 5]),
                                max_new_tokens=rng.randint(1, 12), seed=number, stop_ids=rng.choice([None, ()]),
                                stop=tuple(rng.choices(ALPHABET, k=rng.choice([0, 0, 1]))))
        pool.append(Job(tuple(rng.choices(range(VOCAB), k=rng.randint(1, 16))), params,
                        rng.choice([None, None, *drafters]) if greedy else rng.choice(drafters)))
    return [replace(rng.choice(pool), patience=rng.randrange(4) if rng.random() < .1 else None) for _ in range(count)]


@dataclass
class Served:
    """What became of the jobs. ``queued``: the longest queue. ``memory``: objects and bytes, now and then."""

    requests: list[Request] = field(default_factory=list)
    steps: int = 0
    queued: int = 0
    memory: list[tuple[int, int]] = field(default_factory=list)


def serve(engine: Engine, todo: list[Job], seed: int = 0, *, keep: bool = True, marks: int = 10) -> Served:
    """Let the jobs come, one per step on average, and in bursts. ``keep`` False lets go of those who are through.
    ``marks``: how often memory is looked at."""
    served, rng, waiting, here = Served(), random.Random(seed), list(todo)[::-1], {}
    stretch = max(1, len(todo) // marks)
    while waiting or here:
        for _ in range(min(len(waiting), rng.choice([0, 0, 0, 0, 1, 1, 2, 9]))):
            job = waiting.pop()
            request = engine.submit(list(job.prompt), job.params, drafter=job.drafter)
            here[request] = job
            if keep:
                served.requests.append(request)
            if len(waiting) % stretch == 0:
                engine.trace.events.clear()         # whoever runs a service writes its events down and lets go of them
                served.memory.append((_objects(), resident()))
        engine.step()
        served.steps += 1
        served.queued = max(served.queued, len(engine.queue))
        for request, job in list(here.items()):
            if job.patience is not None and len(request.output_ids) >= job.patience:
                engine.cancel(request)
            if request.finished:
                del here[request]
    return served


def differences(family, served: Served, todo: list[Job], count: int, **limits) -> tuple[int, int]:
    """Of the first ``count`` texts how many are not those of requests served alone, and how many were compared.
    What was given up must be the beginning of its text."""
    alone, texts, wrong = Engine(family, "none", max_batch=1, **limits), {}, 0
    for request, job in list(zip(served.requests, todo))[:count]:
        # greedy text is the target's own, whoever drafts; sampled text is a function of its drafter's choices too
        kind = job.prompt, job.params, "none" if job.params.greedy else job.drafter
        if kind not in texts:
            texts[kind], = alone.generate([list(job.prompt)], job.params, drafter=kind[2])
        text, whole = texts[kind], request.finish_reason is not FinishReason.CANCELLED
        got, expected = request.output_ids, text.output_ids
        wrong += request.error is not None or not (
            got == expected and request.finish_reason is text.finish_reason and request.text == text.text if whole
            else got == expected[:len(got)])
    return wrong, min(count, len(todo))


def run(args) -> Report:
    family = small()
    limits = {"max_len": 32, "prefill_chunk": 12}
    engine = Engine(family, max_batch=args.batch, kv_tokens=10 * args.batch, **limits)
    todo = jobs(args.requests, args.seed, [*family.drafters, "ngram", "none"])
    began = time.perf_counter()
    served = serve(engine, todo, args.seed)
    seconds = time.perf_counter() - began
    lost = sum(not r.finished for r in served.requests) + len(engine.queue) + len(engine.running)
    wrong, compared = differences(family, served, todo, args.compare, **limits)
    served.requests.clear()
    # a second service on the same engine: what grows now is kept for nothing
    memory = serve(engine, todo, args.seed + 1, keep=False).memory
    objects, held = ([m[i] for m in memory] for i in (0, 1))
    rows = [{"jobs_submitted": i * len(todo) // len(memory), "objects": o, "resident_mb": h / 1e6}
            for i, (o, h) in enumerate(memory, 1)]
    return Report("load", rows, [
        Bar("requests lost", lost, "<= 0"),
        Bar(f"texts that differ from those of requests alone, of {compared}", wrong, "<= 0"),
        Bar("objects held, last third over first third of a second service", _growth(objects), "<= 1.02"),
        Bar("resident memory, the same", _growth(held), "<= 1.05")], [
        f"{len(todo)} requests in {served.steps} steps, {seconds:.0f} s; batch {args.batch}, longest queue "
        f"{served.queued}; random models in float64, {engine.pipeline.count} micro-batches at the end",
        "how many texts of the embedded family differ through rounding, and by which gaps: bench equality"])


def _growth(values: list[int]) -> float | None:
    """The last third over the first; None where the system does not tell."""
    third = max(1, len(values) // 3)
    first = statistics.median(values[:third])
    return statistics.median(values[-third:]) / first if first else None


def _objects() -> int:
    gc.collect()
    return len(gc.get_objects())


def resident() -> int:
    """Bytes of this process in main memory; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


# ---- models that need no download


@dataclass
class SmallDrafter:
    """What the engine needs of a model drafter."""

    name: str
    model: torch.nn.Module
    ids: None = None
    max_context: int = 128


@dataclass
class SmallFamily:
    """What the engine needs of a family; a token is a character."""

    target: torch.nn.Module
    drafters: dict[str, SmallDrafter]
    vocab_size: int = VOCAB
    stop_ids: tuple[int, ...] = (STOP,)
    max_context: int = 128

    def decode(self, ids: list[int]) -> str:
        return "".join(ALPHABET[i] for i in ids)


def small() -> SmallFamily:
    """A random Llama of one layer in float64, and a disturbed copy of it that drafts well."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def model() -> LlamaForCausalLM:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return LlamaForCausalLM(LlamaConfig(
                vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
                num_key_value_heads=2, head_dim=8, max_position_embeddings=128, initializer_range=.2, bos_token_id=None,
                eos_token_id=None)).to(torch.float64).eval()

    target, close = model(), model()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for weight in close.parameters():
            weight += .1 * weight.std() * torch.randn_like(weight)
    return SmallFamily(target, {"close": SmallDrafter("close", close)})
