"""Ours against the peers: the same models, the same prompts, one process, interleaved repeats.

Every contender decodes greedily and its emitted tokens per second are compared with those of plain ``generate`` in
the same round; the table shows medians over the rounds. ``same_text`` is the share of prompts whose tokens equal
those of ``generate``: in fp32 products of other shapes round differently, and a near tie may then fall the other way.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from spin_core.bench import Bar, Report
from spin_core.draft import FedLlama
from spin_core.engine import Engine
from spin_core.request import SamplingParams
from spin_core.runtime.linear import pack_linears
from spin_core.runtime.runner import share_weights

DESCRIPTION = "emitted tokens per second against transformers' generate, its assisted generation, and flashspec"
BASELINE = "transformers generate"
Tokens = list[list[int]]


def add_arguments(parser) -> None:
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], help="batch sizes (default 1 8)")
    parser.add_argument("--prompts", type=int, default=4, help="prompts at batch 1; more above, two batches at least (default 4)")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--gammas", type=int, nargs="+", default=[2, 4], help="draft lengths tried (default 2 4)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds after the warm-up (default 3)")
    parser.add_argument("--workload", default="mix")
    parser.add_argument("--device", default="cpu")


@dataclass
class Contender:
    """A way to decode: ``decode(prompts)`` returns the emitted tokens of each."""

    name: str
    decode: Callable[[Tokens], Tokens]
    drafter: str | None = None
    gamma: int | None = None
    engine: Engine | None = None
    rates: list[float] = field(default_factory=list)
    texts: Tokens = field(default_factory=list)


def run(args) -> Report:
    from spin_core import zoo
    from spin_core.workloads import load_workload

    family = zoo.load("smollm2", device=args.device)
    rows, bars, notes = [], [], []
    for batch in args.batch:
        # above batch 1 more prompts than places, so that continuous batching has something to continue with
        count = args.prompts if batch == 1 else max(2 * args.prompts, 2 * batch)
        prompts = [family.encode(p.messages) for p in load_workload(args.workload, "test", limit=count)]
        contenders = _contenders(family, batch, args)
        _race(contenders, prompts, args.repeats, notes)
        rows += [_row(c, contenders[0], batch) for c in contenders if c.rates]
        bars += _bars(contenders, batch)
        notes.append(f"batch {batch}: {len(prompts)} prompts of {args.workload}, "
                     f"{min(map(len, prompts))} to {max(map(len, prompts))} tokens, max_new_tokens {args.max_new_tokens}")
    notes.append("the best drafter and gamma are chosen by the same rounds that report them")
    notes.append("'packed products' is transformers' own loop over the products that our runner uses: what it gains "
                 "over plain generate is due to the products alone")
    return Report("peers", rows, bars, notes)


def _race(contenders: list[Contender], prompts: Tokens, repeats: int, notes: list[str]) -> None:
    """Let every contender decode ``prompts`` in every round. One that raises is out, and a note says why."""
    for round_ in range(repeats + 1):
        for contender in contenders[:]:
            start = time.perf_counter()
            try:
                texts = contender.decode(prompts)
            except Exception as error:      # a peer that can't run here must not take the others down
                if contender.name == BASELINE or contender.engine:
                    raise
                contenders.remove(contender)
                notes.append(f"{contender.name} did not run here: {type(error).__name__}: {str(error)[:160]}")
                continue
            seconds = time.perf_counter() - start
            if round_:                      # the first round warms up
                contender.rates.append(sum(map(len, texts)) / seconds)
            contender.texts = texts


def _row(contender: Contender, baseline: Contender, batch: int) -> dict:
    row = {"batch": batch, "contender": contender.name, "drafter": contender.drafter, "gamma": contender.gamma,
           "tokens_per_s": statistics.median(contender.rates), "vs_generate": _ratio(contender, baseline),
           "same_text": statistics.mean(a == b for a, b in zip(contender.texts, baseline.texts))}
    if contender.engine:
        metrics = contender.engine.trace.metrics()
        total = sum(metrics["seconds"].values())
        row |= {"tokens_per_verification": metrics["tokens_per_verification"],
                "acceptance": metrics["acceptance_rate"]}
        row |= {f"{phase}_share": seconds / total for phase, seconds in metrics["seconds"].items()}
    return row


def _ratio(a: Contender, b: Contender) -> float:
    """Median over the rounds of a's rate over b's in the same round."""
    return statistics.median(x / y for x, y in zip(a.rates, b.rates))


def _bars(contenders: list[Contender], batch: int) -> list[Bar]:
    baseline = contenders[0]
    plain = next(c for c in contenders if c.engine and c.drafter == "none")
    if batch > 1:
        return [Bar(f"plain decoding over {BASELINE}, batch {batch}, mixed lengths", _ratio(plain, baseline), ">= 1.15")]
    drafted = [c for c in contenders if c.engine and c.drafter != "none"]
    best = max(drafted, key=lambda c: statistics.median(c.rates))

    def worst_over(name: str) -> float | None:
        """Our least gain over that contender, each at its best gamma, over the drafters that both can use."""
        theirs = _best_by_drafter([c for c in contenders if c.name == name])
        return min((_ratio(a, b) for a in _best_by_drafter(drafted) for b in theirs if a.drafter == b.drafter),
                   default=None)

    return [
        Bar(f"plain decoding over {BASELINE}, batch 1", _ratio(plain, baseline), ">= 0.95"),
        Bar(f"best fixed drafter ({best.drafter}, gamma {best.gamma}) over {BASELINE}, batch 1",
            _ratio(best, baseline), ">= 1.1"),
        Bar(f"best fixed drafter ({best.drafter}, gamma {best.gamma}) over our plain decoding, batch 1",
            _ratio(best, plain), ">= 1.0"),
        Bar("worst drafter over assisted generation with the same drafter, each at its best gamma, batch 1",
            worst_over("transformers assisted"), ">= 1.1"),
        Bar("the same, assisted generation over packed products too",
            worst_over("transformers assisted, packed products"), ">= 1.0"),
    ]


def _best_by_drafter(contenders: list[Contender]) -> list[Contender]:
    best: dict[str, Contender] = {}
    for c in contenders:
        if c.rates and (c.drafter not in best or statistics.median(c.rates) > statistics.median(best[c.drafter].rates)):
            best[c.drafter] = c
    return list(best.values())


# ---- who takes part


def _contenders(family, batch: int, args) -> list[Contender]:
    packed = _packed(family.target)
    out = [Contender(BASELINE, _generate(family, family.target, batch, args.max_new_tokens))]
    if packed is not None:
        out.append(Contender("transformers, packed products", _generate(family, packed, batch, args.max_new_tokens)))
    if batch > 1:
        out.append(Contender("transformers continuous batching", _continuous(family, batch, args.max_new_tokens)))
    else:
        for name, drafter in family.drafters.items():
            if isinstance(drafter.model, FedLlama):         # needs the target's states, which peers do not hand out
                continue
            assistant = _assistant(drafter, family.target)
            models = {"transformers assisted": (family.target, assistant)}
            if packed is not None:
                models["transformers assisted, packed products"] = packed, _packed(assistant)
            out += [Contender(title, _assisted(family, *pair, gamma, args.max_new_tokens), name, gamma)
                    for title, pair in models.items() for gamma in args.gammas]
            out.append(Contender("flashspec", _flashspec(family, assistant, args.max_new_tokens), name))
    for name in ("none", "ngram", *family.drafters):
        for gamma in [0] if name == "none" else args.gammas:
            engine = Engine(family, name, gamma, max_batch=batch)
            out.append(Contender("spin_core", _ours(engine, args.max_new_tokens), name, gamma, engine))
    return out


def _packed(model):
    """A copy of ``model`` over the products that our runner uses; None where they cannot be packed."""
    copy_ = share_weights(model)
    return copy_ if pack_linears(copy_) else None


def _ours(engine: Engine, max_new_tokens: int) -> Callable[[Tokens], Tokens]:
    params = SamplingParams(max_new_tokens=max_new_tokens)
    return lambda prompts: [r.output_ids for r in engine.generate(prompts, params)]


def _generate(family, model, batch: int, max_new_tokens: int, **options) -> Callable[[Tokens], Tokens]:
    """transformers' generate over left-padded batches of ``batch`` prompts in their order."""
    def decode(prompts: Tokens) -> Tokens:
        out: Tokens = []
        for first in range(0, len(prompts), batch):
            part = prompts[first:first + batch]
            width = max(map(len, part))
            ids = torch.tensor([[0] * (width - len(p)) + p for p in part], device=family.device)
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part], device=family.device)
            with torch.inference_mode():
                tokens = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=max_new_tokens,
                                        **_greedy(family), **options)
            out += [_upto_stop(row, family) for row in tokens[:, width:].tolist()]
        return out
    return decode


def _continuous(family, batch: int, max_new_tokens: int) -> Callable[[Tokens], Tokens]:
    from transformers import GenerationConfig

    model = share_weights(family.target)        # it switches the attention of the model it runs

    def decode(prompts: Tokens) -> Tokens:
        config = GenerationConfig(max_new_tokens=max_new_tokens, **_greedy(family))
        outputs = model.generate_batch(inputs=prompts, generation_config=config)
        if len(outputs) != len(prompts):
            raise RuntimeError(f"it returned {len(outputs)} of {len(prompts)} texts")
        in_order = sorted(outputs.items(), key=lambda item: int("".join(filter(str.isdigit, item[0]))))
        return [_upto_stop(output.generated_tokens, family) for _, output in in_order]
    return decode


class WideHead(nn.Module):
    """A drafter's head over its reduced vocabulary, spread over the target's: what assisted generation expects."""

    def __init__(self, head: nn.Module, ids: Tensor, vocab_size: int) -> None:
        super().__init__()
        self.head, self.vocab_size = head, vocab_size
        self.register_buffer("ids", ids, persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        narrow = self.head(hidden)
        wide = narrow.new_full((*narrow.shape[:-1], self.vocab_size), -torch.inf)
        return wide.index_copy_(-1, self.ids, narrow)


def _assistant(drafter, target):
    """The drafter as a causal LM over the target's vocabulary: the same drafts, for peers that need equal heads."""
    model = share_weights(drafter.model)
    model.config.vocab_size = target.config.vocab_size
    model.generation_config = copy.deepcopy(target.generation_config)
    if drafter.ids is not None:
        model.set_output_embeddings(WideHead(model.get_output_embeddings(), drafter.ids, target.config.vocab_size))
    return model


def _assisted(family, target, assistant, gamma: int, max_new_tokens: int) -> Callable[[Tokens], Tokens]:
    """transformers' assisted generation, ``gamma`` drafted tokens every time, as ours."""
    def decode(prompts: Tokens) -> Tokens:
        config = assistant.generation_config
        config.num_assistant_tokens, config.num_assistant_tokens_schedule = gamma, "constant"
        config.assistant_confidence_threshold = 0.0
        return generate(prompts)

    generate = _generate(family, target, 1, max_new_tokens, assistant_model=assistant)
    return decode


def _flashspec(family, assistant, max_new_tokens: int) -> Callable[[Tokens], Tokens]:
    """The PyPI package flashspec, with its default strategy, where it is installed."""
    def decode(prompts: Tokens) -> Tokens:
        import flashspec
        from flashspec.engine import HuggingFaceDrafter, TargetModel

        if not engine:
            device, dtype = torch.device(family.device), family.target.dtype
            target = TargetModel("target", device, dtype, model=family.target)
            drafter = HuggingFaceDrafter("drafter", device, dtype, model=assistant)
            config = flashspec.FlashSpecConfig(device=str(device), sampling=flashspec.SamplingConfig(temperature=0.0))
            engine.append(flashspec.SpeculativeEngine(config, [drafter], target))
        out = []
        for prompt in prompts:
            result = engine[0].generate(torch.tensor([prompt], device=family.device), max_new_tokens=max_new_tokens)
            out.append(_upto_stop([t for t in result.output_ids[0].tolist() if t >= 0], family))
        return out

    engine: list = []
    return decode


def _greedy(family) -> dict:
    return {"do_sample": False, "eos_token_id": list(family.stop_ids), "pad_token_id": family.stop_ids[0]}


def _upto_stop(tokens: list[int], family) -> list[int]:
    for i, token in enumerate(tokens):
        if token in family.stop_ids:
            return tokens[:i + 1]
    return tokens
