"""Random model families, small enough to run thousands of times, and plain decoding to compare with.

Everything is float64 unless said otherwise: there an equality of texts or logits is an equality, not a tolerance.
"""

from __future__ import annotations

import resource
import string
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from spin_core.draft import Drafter, Eagle3Llama, FedLlama
from spin_core.engine import Engine
from spin_core.request import Request
from spin_core.zoo.fed import LAST

VOCAB = 41
STOP = 3
MAX_CONTEXT = 96
# One string per token. Some hold two characters, so that a stop string may begin or end inside a token.
PIECES = [*string.ascii_letters[:31], *("abcdefghijk"[i:i + 2] for i in range(10))]


def llama(seed: int = 0, *, layers: int = 2, vocab: int = VOCAB, dtype: torch.dtype = torch.float64,
          **changes) -> LlamaForCausalLM:
    """A random Llama with grouped-query attention. Weights of scale 0.2 make its text varied."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = dict(vocab_size=vocab, hidden_size=32, intermediate_size=48, num_hidden_layers=layers,
                      num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=MAX_CONTEXT,
                      initializer_range=0.2, bos_token_id=None, eos_token_id=None)
        return LlamaForCausalLM(LlamaConfig(**config | changes)).to(dtype).eval()


@dataclass
class TinyDrafter:
    """What the engine needs of a model drafter."""

    name: str
    model: LlamaForCausalLM
    ids: Tensor | None = None
    max_context: int = MAX_CONTEXT


@dataclass
class TinyFamily:
    """What the engine needs of a family: the target, its drafters, and a tokenizer of fixed pieces."""

    target: LlamaForCausalLM
    drafters: dict[str, TinyDrafter]
    vocab_size: int = VOCAB
    stop_ids: tuple[int, ...] = (STOP,)
    max_context: int = MAX_CONTEXT
    pieces: list[str] = field(default_factory=lambda: PIECES)

    def encode(self, prompt: str) -> list[int]:
        return [self.pieces.index(character) for character in prompt]

    def decode(self, ids: list[int]) -> str:
        return "".join(self.pieces[i] for i in ids)


class ReadingFamily(TinyFamily):
    """A tiny family that reads any text: a character stands for its code point modulo the vocabulary."""

    name = "tiny"
    tokenizer = SimpleNamespace(chat_template=None)

    def encode(self, prompt: str) -> list[int]:
        return [ord(c) % VOCAB for c in prompt[-12:]]


def near(model: LlamaForCausalLM, noise: float = 0.15, seed: int = 5) -> LlamaForCausalLM:
    """``model`` with its weights disturbed: it agrees often, but not always."""
    copy = type(model)(model.config).to(model.dtype).eval()
    copy.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in copy.parameters():
            weight += noise * weight.std() * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    return copy


def subset(model: LlamaForCausalLM, ids: Tensor) -> LlamaForCausalLM:
    """``model`` with a head that knows only the target ids ``ids``."""
    copy = near(model, noise=0.05)
    head = nn.Linear(model.config.hidden_size, len(ids), bias=False, dtype=model.dtype)
    head.weight.data = copy.lm_head.weight.detach()[ids].clone()
    copy.lm_head = head
    return copy


@lru_cache
def family(dtype: torch.dtype = torch.float64) -> TinyFamily:
    """The common family; its models are shared between tests and must not be changed.

    "near" is often right, "subset" too but knows two thirds of the ids, "other" is hardly ever right, "same" always
    (it is the target itself), and "short" is "near" with a context of 20 tokens.
    """
    target = llama(dtype=dtype)
    ids = torch.tensor([i for i in range(VOCAB) if i % 3 != 1])
    close = near(target)
    drafters = [TinyDrafter("near", close), TinyDrafter("subset", subset(target, ids), ids),
                TinyDrafter("other", llama(7, layers=1, dtype=dtype)), TinyDrafter("same", target),
                TinyDrafter("short", close, None, 20)]
    return TinyFamily(target, {d.name: d for d in drafters})


def fed_family(layers_read: tuple[int, ...] = (LAST,)) -> TinyFamily:
    """A target whose only drafter, "fed", reads its states."""
    target = llama()
    config = LlamaConfig(**target.config.to_dict())
    config.layers_read = layers_read
    model = FedLlama(config).to(torch.float64).eval()
    generator, known = torch.Generator().manual_seed(3), target.state_dict()
    model.load_state_dict(known | {name: 0.05 * torch.randn(weight.shape, dtype=weight.dtype, generator=generator)
                                   for name, weight in model.state_dict().items() if name not in known})
    return TinyFamily(target, {"fed": TinyDrafter("fed", model)})


HEAD_PROMPTS = [[5, 6, 7, 8], [11, 2, 30, 4], [3, 1, 4, 1]]


@lru_cache
def head_family() -> TinyFamily:
    """A target whose only drafter, "head", is an EAGLE-3 head over two thirds of the ids, fitted to the target's greedy
    texts behind HEAD_PROMPTS. Shared between tests; not to be changed."""
    from spin_core.lab.distill.unroll import unroll

    target = llama(layers=3)
    generator = torch.Generator().manual_seed(3)
    ids = torch.tensor([i for i in range(VOCAB) if i % 3 != 1])
    config = LlamaConfig(**target.config.to_dict() | {"num_hidden_layers": 1, "vocab_size": len(ids)})
    config.layers_read = (0, 1, 3)
    model = Eagle3Llama(config).to(torch.float64).eval()
    model.model.embed_tokens = target.model.embed_tokens
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1 and weight is not target.model.embed_tokens.weight:
                weight.copy_(0.1 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    model.lm_head.weight = nn.Parameter(target.lm_head.weight.detach()[ids].clone(), requires_grad=False)
    model.model.embed_tokens.requires_grad_(False)
    tokens = torch.tensor(HEAD_PROMPTS)
    with torch.no_grad():
        for _ in range(24):
            tokens = torch.cat([tokens, target(tokens).logits[:, -1:].argmax(-1)], 1)
        inner = target.model(tokens, output_hidden_states=True).hidden_states
        kept: list[Tensor] = []
        hook = target.model.norm.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
        logits_ = target(tokens).logits
        hook.remove()
        states, goal = torch.cat([inner[0], inner[1], kept[0]], -1), logits_[..., ids].softmax(-1)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
    for _ in range(100):
        loss = sum(-(goal * model.lm_head(body).log_softmax(-1)).sum(-1)[:, 3:].mean()
                   for body in unroll(model, tokens, states, 3))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.requires_grad_(False)
    return TinyFamily(target, {"head": TinyDrafter("head", model, ids)})


DRAFTERS = ["near", "subset", "other", "same", "short", "ngram", "none"]


@torch.inference_mode()
def logits(model: LlamaForCausalLM, ids: list[int]) -> Tensor:
    """The model's own logits behind every token of one sequence, ``[T, V]``."""
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def assert_greedy(model: LlamaForCausalLM, request: Request, *, vocab_size: int | None = None,
                  stop_ids: tuple[int, ...] = (STOP,), max_len: int = MAX_CONTEXT) -> None:
    """The request's output is what plain greedy decoding gives, in content and in length.

    Every token must be the model's own argmax behind all before it, which by induction fixes the text.
    """
    output = request.output_ids
    if output:
        behind = logits(model, request.ids[:-1])[len(request.prompt_ids) - 1:, :vocab_size]
        assert behind.argmax(-1).tolist() == output
    assert not any(token in stop_ids for token in output[:-1]), "it ran on behind a stop token"
    if not (output and output[-1] in stop_ids):
        assert len(output) == min(request.params.max_new_tokens, max_len - len(request.prompt_ids))


def assert_sound(engine: Engine, requests: list[Request]) -> None:
    """The trace of an idle engine that served exactly ``requests`` tells one consistent story within every limit.

    Memory: what the running requests may come to hold never exceeds ``kv_tokens``. Rule 8: no draft runs past
    max_new_tokens, the target's context, or the drafter's own.
    """
    by_id = {r.id: r for r in requests}
    texts: dict[int, list[int]] = {r.id: [] for r in requests}
    reserved: dict[int, int] = {}
    ended: set[int] = set()
    for event in engine.trace.events:
        request = by_id[event.request]
        assert event.request not in ended, "nothing happens to a request after its end"
        if event.kind == "admit":
            reserved[request.id] = min(len(request.prompt_ids) + request.params.max_new_tokens, engine.max_len)
            assert sum(reserved.values()) <= engine.kv_tokens and len(reserved) <= engine.max_batch
        elif event.kind == "finish":
            ended.add(event.request)
            reserved.pop(event.request, None)
            assert event.reason == request.finish_reason.value
        elif event.kind == "step":
            text, drafted, emitted = texts[request.id], event.drafted, event.emitted
            assert event.context == len(request.prompt_ids) + len(text)
            assert event.context + len(drafted) <= reserved[request.id]
            assert not drafted or len(drafted) <= request.params.max_new_tokens - len(text) - 1
            if drafted and event.drafter in engine.family.drafters:
                assert event.context + len(drafted) <= engine.family.drafters[event.drafter].max_context
            assert len(emitted) <= event.accepted + 1 and event.accepted <= len(drafted)
            if event.accepted > len(emitted):       # cut at a stop, whatever was accepted behind it
                assert request.finish_reason.value == "stop" and text + emitted == request.output_ids
            assert emitted[:event.accepted] == drafted[:event.accepted][:len(emitted)]
            if len(emitted) > event.accepted < len(drafted):
                assert emitted[-1] != drafted[event.accepted], "a rejected token came back"
            text += emitted
    assert ended == set(by_id)
    for request in requests:
        assert texts[request.id] == request.output_ids
    assert_idle(engine)


def assert_idle(engine: Engine) -> None:
    """Nothing of any request is left in the engine but its events."""
    assert not engine.queue and not engine.running
    assert sorted(engine.free_slots) == list(range(engine.max_batch))
    assert not any(engine.target.cache.lengths)
    for drafter in engine.drafters.values():
        assert not any(held(drafter)), f"{drafter.name} still holds something"


def steps(engine: Engine, error: type[BaseException]) -> Iterator[bool]:
    """Serve everybody; after every step, whether it raised ``error``."""
    while engine.queue or engine.running:
        try:
            engine.step()
        except error:
            failed = True
        else:
            failed = False
        yield failed


def held(drafter: Drafter) -> list[int]:
    """How much a drafter and the drafters in it hold of requests: tokens in each slot, entries in each book."""
    runner = getattr(drafter, "runner", None)
    books = [len(getattr(drafter, book)) for book in ("index", "scored", "ballots") if hasattr(drafter, book)]
    within = [*getattr(drafter, "members", ()), *(getattr(drafter, part) for part in ("lookup", "fallback")
                                                  if hasattr(drafter, part))]
    return [*(runner.cache.lengths if runner else ()), *books, *(n for inner in within for n in held(inner))]


@contextmanager
def little_room(bytes_: int = 4096) -> Iterator[None]:
    """As on a full disk: no file can grow beyond ``bytes_``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
