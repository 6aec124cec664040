"""What the target's head reads, for every token of the corpus, in half precision.

The distribution itself would be 49,152 numbers a token, terabytes for a modest corpus. The state before the head is
576, and the head is applied again when a batch needs the distribution. ``log_z``, the log of its normaliser over the
*whole* vocabulary, makes the distribution over a reduced vocabulary exact, without renormalising.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spin_core.lab.distill.corpus import Shard
from spin_core.runtime.linear import pack_linears
from spin_core.runtime.loading import share_weights
from spin_core.zoo.fed import LAST


@dataclass
class States:
    """``hidden [N, hidden]`` float16 and ``log_z [N]`` float32, row for row with a shard's tokens. ``log_z`` is only
    computed where an answer's token follows; elsewhere it is 0. ``inputs``: what entered some of the target's layers,
    ``[N, hidden]`` bfloat16 each, for heads that read them; they are not kept in files."""

    hidden: Tensor
    log_z: Tensor
    inputs: dict[int, Tensor] = field(default_factory=dict)

    def read_by(self, model) -> Tensor:
        """The states ``[N, width]`` that a drafter reads (:class:`spin_core.zoo.fed.FedModel`)."""
        layers = getattr(model, "layers_read", (LAST,))
        parts = [self.hidden if layer == LAST else self.inputs[layer] for layer in layers]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


@torch.inference_mode()
def compute(model: PreTrainedModel, shard: Shard, vocab_size: int, batch_tokens: int = 1024,
            layers: tuple[int, ...] = ()) -> States:
    """The states of texts from elsewhere, with the inputs of ``layers``: read the shard with ``model``,
    ``batch_tokens`` at a time; the result is on the model's device."""
    model = share_weights(model).eval()
    pack_linears(model)
    device = model.device
    total = len(shard.tokens)
    width = model.get_output_embeddings().weight.shape[1]
    out = States(torch.empty(total, width, dtype=torch.float16, device=device), torch.zeros(total, device=device),
                 {layer: torch.empty(total, width, dtype=torch.bfloat16, device=device)
                  for layer in layers if layer != LAST})
    seen: dict[int, Tensor] = {}
    for layer in out.inputs:        # of a copy of the modules: nothing to undo
        (model.model.layers[layer] if layer < len(model.model.layers) else model.model.norm).register_forward_pre_hook(
            lambda module, args, layer=layer: seen.update({layer: args[0]}))
    tokens, starts = shard.tokens.long().to(device), shard.starts.to(device)
    lengths, prompts = shard.lengths.to(device), shard.prompt_lengths.to(device)
    for rows in _batches(shard.lengths, batch_tokens):
        rows = rows.to(device)
        offset = torch.arange(int(lengths[rows].max()), device=device)
        real = offset < lengths[rows, None]
        index = (starts[rows, None] + offset).clamp(max=total - 1)
        hidden = model.model(input_ids=tokens[index] * real, use_cache=False).last_hidden_state
        out.hidden[index[real]] = hidden[real].half()
        for layer, given in seen.items():
            out.inputs[layer][index[real]] = given[real].bfloat16()
        deciding = real & (offset >= prompts[rows, None] - 1) & (offset < lengths[rows, None] - 1)
        out.log_z[index[deciding]] = torch.cat([
            model.lm_head(part)[:, :vocab_size].float().logsumexp(-1) for part in hidden[deciding].split(batch_tokens)])
    return out


def fast_bf16(device: torch.device) -> bool:
    """Whether bf16 products are much quicker than fp32 ones: on GPUs, and on CPUs with instructions for them."""
    return device.type == "cuda" or (torch.backends.mkldnn.is_available()
                                     and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _batches(lengths: Tensor, batch_tokens: int) -> Iterator[Tensor]:
    """Indices of sequences of similar length, longest first, so that little is padded."""
    order = lengths.argsort(descending=True)
    while len(order):
        count = max(1, batch_tokens // int(lengths[order[0]]))
        yield order[:count]
        order = order[count:]
