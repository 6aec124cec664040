"""How peers decode: transformers' ways and flashspec. Token ids in and out."""

import copy
import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from spin_core.lab.bench.rounds import Tokens
from spin_core.runtime.linear import pack_linears
from spin_core.runtime.loading import share_weights

INSTALL = "pip install -e '.[peers]'"       # brings flashspec


def packed(model):
    """A copy of ``model`` over the products that our runner uses; None where they cannot be packed."""
    copy_ = share_weights(model)
    return copy_ if pack_linears(copy_) else None


def generate(family, model, batch: int, max_new_tokens: int, temperature: float = 0.0,
             **options) -> Callable[[Tokens], Tokens]:
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
                                        **_distribution(family, temperature), **options)
            out += [_upto_stop(row, family) for row in tokens[:, width:].tolist()]
        return out
    return decode


def continuous(family, max_new_tokens: int, temperature: float = 0.0) -> Callable[[Tokens], Tokens]:
    """transformers' continuous batching, with pages and masks no larger than needed: the default ones fill a GPU's
    memory, and take seconds per step on a CPU."""
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    model = share_weights(family.target)        # it switches the attention of the model it runs

    def decode(prompts: Tokens) -> Tokens:
        config = GenerationConfig(max_new_tokens=max_new_tokens, **_distribution(family, temperature))
        page = 32
        pages = sum(-(-(len(prompt) + max_new_tokens) // page) for prompt in prompts)
        outputs = model.generate_batch(inputs=prompts, generation_config=config, continuous_batching_config=
                                       ContinuousBatchingConfig(page_size=page, num_blocks=pages + 1,
                                                                max_batch_tokens=256))
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


def assistant(drafter, target):
    """The drafter as a causal LM over the target's vocabulary: the same drafts, for peers that need equal heads."""
    model = share_weights(drafter.model)
    model.config.vocab_size = target.config.vocab_size
    model.generation_config = copy.deepcopy(target.generation_config)
    if drafter.ids is not None:
        model.set_output_embeddings(WideHead(model.get_output_embeddings(), drafter.ids, target.config.vocab_size))
    return model


def assisted(family, target, assistant, gamma: int, max_new_tokens: int,
             temperature: float = 0.0) -> Callable[[Tokens], Tokens]:
    """transformers' assisted generation, ``gamma`` drafted tokens every time, as ours."""
    config = assistant.generation_config
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = gamma, "constant"
    config.assistant_confidence_threshold = 0.0
    return generate(family, target, 1, max_new_tokens, temperature, assistant_model=assistant)


def flashspec(family, assistant, max_new_tokens: int, temperature: float = 0.0) -> Callable[[Tokens], Tokens]:
    """The PyPI package flashspec, with its default strategy: prompt lookup of up to 6 tokens, where that finds nothing
    2 of ``assistant``. Decoding raises ImportError where it is not installed."""
    @functools.cache
    def engine():
        try:
            import flashspec
            from flashspec.engine import HuggingFaceDrafter, TargetModel
        except ImportError as error:
            raise ImportError(f"{error}; {INSTALL} brings it") from error

        device, dtype = torch.device(family.device), family.target.dtype
        config = flashspec.FlashSpecConfig(device=str(device), eos_token_ids=family.stop_ids,
                                           sampling=flashspec.SamplingConfig(temperature=temperature))
        drafter = HuggingFaceDrafter("drafter", device, dtype, temperature, model=assistant)
        return flashspec.SpeculativeEngine(config, [drafter], TargetModel("target", device, dtype, model=family.target))

    def decode(prompts: Tokens) -> Tokens:
        out = []
        for prompt in prompts:
            result = engine().generate(torch.tensor([prompt], device=family.device), max_new_tokens=max_new_tokens)
            out.append(_upto_stop([t for t in result.output_ids[0].tolist() if t >= 0], family))
        return out

    return decode


def _distribution(family, temperature: float) -> dict:
    """The target's own distribution: no truncation."""
    distribution = {"do_sample": False}
    if temperature:
        distribution = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    return distribution | {"eos_token_id": list(family.stop_ids), "pad_token_id": family.stop_ids[0]}


def _upto_stop(tokens: list[int], family) -> list[int]:
    for i, token in enumerate(tokens):
        if token in family.stop_ids:
            return tokens[:i + 1]
    return tokens
