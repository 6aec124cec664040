"""The embedded family itself."""

from __future__ import annotations

import time

import pytest
import torch

from spin_core.draft import FedLlama
from spin_core import zoo
from spin_core.zoo import pruned
from spin_core.zoo.install import BUILTIN

pytestmark = pytest.mark.models


def test_facts(smollm2):
    assert (smollm2.name, smollm2.vocab_size, smollm2.max_context) == ("smollm2", 49152, 8192)
    assert smollm2.stop_ids == (2,)
    assert smollm2.tokenizer.convert_ids_to_tokens(2) == "<|im_end|>"
    assert smollm2.target.lm_head.weight is smollm2.target.model.embed_tokens.weight
    assert smollm2.target.dtype == torch.float32


def test_everything_is_verified(smollm2):
    files = zoo.verify()
    assert files[0].sha256 == BUILTIN["smollm2"].sha256 and not any(file.made for file in files)
    assert sum(file.size for file in files) > 600e6


def test_chatml_round_trip(smollm2):
    text = smollm2.tokenizer.decode(smollm2.encode("Count to 123."))
    assert text.endswith("<|im_start|>user\nCount to 123.<|im_end|>\n<|im_start|>assistant\n")
    assert smollm2.decode(smollm2.encode("Count to 123.")).endswith("user\nCount to 123.\nassistant\n")
    for text in ("don't  stop\n\n 12 héé ☃", " leading", "tab\tx"):
        assert smollm2.decode(smollm2.tokenizer.encode(text)) == text


def test_answers(smollm2):
    ids = smollm2.encode("What is the capital of France?")
    output = smollm2.target.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids):]
    assert smollm2.decode(output) == "The capital of France is Paris."
    assert output[-1] == 2


def test_weights_are_the_gguf_files(smollm2):
    """Against the gguf package's own reader, which shares no code with the conversion."""
    import gguf

    def weight(name: str) -> torch.Tensor:
        tensor = tensors[name]
        return torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy()).float()

    reader = gguf.GGUFReader(zoo.cache_dir() / "smollm2" / BUILTIN["smollm2"].file_name)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    body = smollm2.target.model
    assert torch.equal(body.embed_tokens.weight, weight("token_embd.weight"))
    assert torch.equal(body.norm.weight, weight("output_norm.weight"))
    for number in (0, 17, 29):
        layer = body.layers[number]
        assert torch.equal(layer.mlp.down_proj.weight, weight(f"blk.{number}.ffn_down.weight"))
        assert torch.equal(layer.self_attn.v_proj.weight, weight(f"blk.{number}.attn_v.weight"))
        # GGUF interleaves the two rotary halves of each head
        for name, heads in (("q", 9), ("k", 3)):
            ours = getattr(layer.self_attn, f"{name}_proj").weight
            theirs = weight(f"blk.{number}.attn_{name}.weight").view(heads, 32, 2, 576).transpose(1, 2)
            assert torch.equal(ours, theirs.reshape(-1, 576))


def test_shipped_drafters_agree_with_the_target(smollm2):
    """Far above chance (1 in 8,192) on the target's own greedy answers."""
    assert list(smollm2.drafters) == list(pruned.shipped())
    answers = []
    for prompt in ("Give me three tips for staying healthy.", "Why is the sky blue?"):
        ids = smollm2.encode(prompt)
        answers.append((len(ids), smollm2.target.generate(torch.tensor([ids]), max_new_tokens=20)[0]))
    for drafter in (d for d in smollm2.drafters.values() if isinstance(d, zoo.DraftModel)):
        assert drafter.model.model.embed_tokens.weight is smollm2.target.model.embed_tokens.weight
        assert torch.equal(drafter.model.lm_head.weight, smollm2.target.lm_head.weight[drafter.ids])
        hits = []
        for start, whole in answers:
            with torch.inference_mode():
                given = {}
                if isinstance(drafter.model, FedLlama):     # it reads the target's state before each token
                    states = smollm2.target.model(whole[None]).last_hidden_state
                    given = {"states": torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], 1)}
                guesses = drafter.ids[drafter.model(whole[None], **given).logits[0].argmax(-1)]
            hits.append(guesses[start - 1:-1] == whole[start:])
        agreement = torch.cat(hits).float().mean()
        assert agreement > 0.25, (drafter.name, agreement)


def test_loads_in_under_three_seconds(smollm2):
    """Weights that are made and then overwritten, or converted anew, would show. The processor's seconds, the best of
    three: the machine may have other work."""
    seconds = []
    for _ in range(3):
        before = time.process_time()
        zoo.load("smollm2")
        seconds.append(time.process_time() - before)
    assert min(seconds) < 3, seconds
