"""Make the EAGLE-3 heads in ``heads/``, with the ``speculators`` package: random weights, and the logits it computes.

Not a test: the package needs an environment of its own (torch 2.13.0, transformers 5.19, speculators 0.9.0 without its
dependencies torchvision and torchaudio, loguru, pydantic-settings, datasets 5.1). There: python tests/zoo/make_heads.py

Each folder is what ``save_pretrained`` writes, but for program code. Beside it, in NAME.safetensors, stand ``states``
and ``tokens`` that were read and ``logits [steps, T, Vd]`` of a draft of several tokens behind every position
(training-time test).
"""

import os
import shutil
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch        # noqa: E402
from safetensors.torch import save_file     # noqa: E402
from speculators.config import SpeculatorsConfig, VerifierConfig    # noqa: E402
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig     # noqa: E402
from speculators.proposals.greedy import GreedyTokenProposalConfig      # noqa: E402
from transformers import LlamaConfig    # noqa: E402

HEADS = {
    "one-layer": dict(layers=1),
    "two-layers": dict(layers=2, norm_before_residual=True, fc_norm=True, norm_output=True),
    "normed": dict(layers=1, norm_before_fc=True, eagle_aux_hidden_state_layer_ids=[0, 3, 6]),
    "whole-vocabulary": dict(layers=1, draft_vocab_size=16),
}
STEPS, LENGTH, VOCAB, HIDDEN = 4, 9, 16, 16


def make(folder: Path, layers: int, draft_vocab_size: int = 10, **options) -> None:
    inner = LlamaConfig(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=24, num_hidden_layers=layers,
                        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
                        rope_parameters={"rope_type": "default", "rope_theta": 100.0}, tie_word_embeddings=False)
    inner._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=inner, draft_vocab_size=draft_vocab_size, **options,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3", proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy", verifier=VerifierConfig(name_or_path=None, architectures=[])))
    model = Eagle3DraftModel(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * .3 + (parameter.dim() == 1))
    if draft_vocab_size < VOCAB:
        chosen = torch.zeros(VOCAB, dtype=torch.bool)
        chosen[torch.randperm(VOCAB)[:draft_vocab_size]] = True
        model.load_vocab_mappings(chosen, chosen.nonzero()[:, 0] - torch.arange(draft_vocab_size))
    logits = []
    model.lm_head.register_forward_hook(lambda module, args, output: logits.append(output[0].clone()))
    states, tokens = torch.randn(1, LENGTH, 3 * HIDDEN), torch.randint(0, VOCAB, (1, LENGTH))
    with torch.no_grad():
        model(states, tokens, torch.zeros(1, LENGTH, dtype=torch.long), ttt_steps=STEPS)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "config.py").unlink()
    save_file({"states": states[0], "tokens": tokens[0], "logits": torch.stack(logits)}, f"{folder}.safetensors")


if __name__ == "__main__":
    for seed, (name, options) in enumerate(HEADS.items()):
        torch.manual_seed(seed)
        make(Path(__file__).parent / "heads" / name, **options)
