"""Drafters pruned from a target: the file format, what it shares, and what is refused."""

from __future__ import annotations

import ast
import hashlib
import json

import pytest
import torch
from fakes import WORDS, llama, tokenizer
from safetensors.torch import save_file

from spin_core import zoo
from spin_core.lab.distill.command import to_int8
from spin_core.zoo import pruned, weights
from spin_core.zoo.fed import LAST
from spin_core.zoo.table import is_table

VOCAB = len(WORDS)
IDS = [0, 2, 3, 7, 15]


def tensors_of(model, ids=IDS) -> dict[str, torch.Tensor]:
    """What a drafter file of ``model``'s own layers holds."""
    body = {key: value.clone() for key, value in model.model.state_dict().items()}
    del body["embed_tokens.weight"]
    return {**body, "draft_ids": torch.tensor(ids, dtype=torch.int32)}


@pytest.fixture
def file(tmp_path):
    """file(tensors) -> path of a drafter file."""
    def write(tensors, name: str = "tiny-2L"):
        save_file(tensors, tmp_path / f"{name}.safetensors", metadata={"description": "two layers"})
        return tmp_path / f"{name}.safetensors"

    return write


@torch.inference_mode()
def logits(model) -> torch.Tensor:
    return model(torch.arange(3, 13)[None]).logits[0]


@pytest.mark.parametrize("tied", [True, False])
def test_drafter_with_all_of_the_targets_layers_is_the_target(file, tied):
    target = llama(tie_word_embeddings=tied)
    drafter = pruned.load_pruned(file(tensors_of(target)), target, VOCAB)
    assert (drafter.name, drafter.description, drafter.max_context) == ("tiny-2L", "two layers", 64)
    assert drafter.ids.dtype == torch.int64 and drafter.ids.tolist() == IDS
    torch.testing.assert_close(logits(drafter.model), logits(target)[:, IDS], rtol=1e-12, atol=1e-12)


def test_depth_comes_from_the_file_and_layers_are_numbered(file):
    """The KV cache is addressed by layer_idx."""
    target, other = llama(layers=4), llama(layers=3, seed=1)
    drafter = pruned.load_pruned(file(tensors_of(other)), target, VOCAB)
    layers = drafter.model.model.layers
    assert [layer.self_attn.layer_idx for layer in layers] == [0, 1, 2]
    assert drafter.model.config.num_hidden_layers == 3
    assert target.config.num_hidden_layers == 4 and target.config.tie_word_embeddings
    other.model.embed_tokens = other.lm_head = None
    with torch.inference_mode():
        inputs = target.model.embed_tokens(torch.arange(3, 13))[None]
        expected = other.model(inputs_embeds=inputs).last_hidden_state[0] @ target.lm_head.weight[IDS].T
    torch.testing.assert_close(logits(drafter.model), expected, rtol=1e-12, atol=1e-12)


def test_embedding_is_shared_and_nothing_is_left_on_meta(file):
    target = llama()
    path = file(tensors_of(target))
    drafters = [pruned.load_pruned(path, target, VOCAB).model for _ in range(2)]
    for model in drafters:
        assert model.model.embed_tokens.weight is target.model.embed_tokens.weight
        assert {t.device.type for t in [*model.parameters(), *model.buffers()]} == {"cpu"}
        assert {p.dtype for p in model.parameters()} == {torch.float64}
        assert not model.training and not any(p.requires_grad for p in model.parameters())


def test_through_load(file, save):
    target = llama()
    folder = save("big", target, tokenizer())
    family = zoo.load(target=folder, drafters=[file(tensors_of(target)), str(file(tensors_of(target), "b"))],
                      dtype=torch.float64)
    assert list(family.drafters) == ["tiny-2L", "b"]


def change(**changes):
    """Replace tensors (None: leave out), with "__" for "." in the key."""
    def apply(tensors):
        for key, value in changes.items():
            tensors.pop(key.replace("__", "."), None)
            if value is not None:
                tensors[key.replace("__", ".")] = value
    return apply


@pytest.mark.parametrize("spoil, reason", [
    (change(norm__weight=None), "key 'norm.weight' is missing"),
    (change(layers__1__mlp__up_proj__weight=None), "key 'layers.1.mlp.up_proj.weight' is missing"),
    (change(layers__1__extra=torch.zeros(2)), "key 'layers.1.extra' is not a part of this drafter"),
    (change(norm__weight=torch.zeros(8)), r"key 'norm.weight' has shape \[8\], this target needs \[16\]"),
    (change(embed_tokens__weight=torch.zeros(2)), "key 'embed_tokens.weight' is not a part"),
    (change(draft_ids=None), "key 'draft_ids' is missing"),
    (change(draft_ids=torch.tensor([3, 2])), "key 'draft_ids' is not ascending"),
    (change(draft_ids=torch.tensor([3, 3])), "key 'draft_ids' is not ascending"),
    (change(draft_ids=torch.tensor([3, 16])), "key 'draft_ids' has ids from 3 to 16, outside"),
    (change(draft_ids=torch.tensor([-1, 3])), "key 'draft_ids' has ids from -1 to 3, outside"),
    (change(draft_ids=torch.tensor([0.5])), "key 'draft_ids' must be"),
    (change(draft_ids=torch.tensor([[3]])), "key 'draft_ids' must be"),
    (change(draft_ids=torch.tensor([], dtype=torch.int32)), "key 'draft_ids' must be"),
], ids=lambda x: x if isinstance(x, str) else "")
def test_bad_file_names_file_and_key(file, spoil, reason):
    target = llama()
    tensors = tensors_of(target)
    spoil(tensors)
    path = file(tensors)
    with pytest.raises(ValueError, match=reason) as failure:
        pruned.load_pruned(path, target, VOCAB)
    assert str(failure.value).startswith(f"{path}: ")


def test_no_layers(file):
    path = file({"norm.weight": torch.ones(16), "draft_ids": torch.tensor([1])})
    with pytest.raises(ValueError, match="no key 'layers.0"):
        pruned.load_pruned(path, llama(), VOCAB)


@pytest.mark.parametrize("size", [0, 5, 100, -1])
def test_truncated_or_missing_file(file, size):
    target = llama()
    path = file(tensors_of(target))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match="not a complete safetensors file") as failure:
        pruned.load_pruned(path, target, VOCAB)
    assert str(path) in str(failure.value)
    path.unlink()
    with pytest.raises(ValueError, match="not a complete safetensors file"):
        pruned.load_pruned(path, target, VOCAB)


def test_target_that_is_no_llama(file):
    from transformers import GPT2Config, GPT2LMHeadModel

    path = file(tensors_of(llama()))
    target = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=20))
    with pytest.raises(ValueError, match="needs a Llama target, not GPT2LMHeadModel"):
        pruned.load_pruned(path, target, VOCAB)


# -- the drafters in the package

def test_shipped_drafters_are_whole_and_described():
    drafters = pruned.shipped()
    assert len(drafters) >= 2
    card = (pruned.SHIPPED / "README.md").read_text()
    for name, path in drafters.items():
        pruned.check_shipped(path)
        assert f"`{name}`" in card
        tensors, metadata = weights.read(path)
        if is_table(metadata):
            continue
        ids = tensors["draft_ids"]
        assert {"description", "family", "data", "steps", "began_as_target_layers"} <= metadata.keys()
        assert len(ids) == ast.literal_eval(metadata["recipe"])["vocab"]
        log = json.loads(path.with_suffix(".json").read_text())
        assert log["data"] == metadata["data"] and log["log"][-1]["step"] == int(metadata["steps"])


def test_damaged_shipped_drafter_is_named(tmp_path):
    path = tmp_path / "d.safetensors"
    path.write_bytes(b"weights")
    (tmp_path / "SHA256SUMS").write_text(f"{hashlib.sha256(b'weights').hexdigest()}  d.safetensors\n")
    pruned.check_shipped(path)
    path.write_bytes(b"Weights")
    with pytest.raises(zoo.CorruptFileError, match="d.safetensors is corrupt"):
        pruned.check_shipped(path)


# -- EAGLE-3 heads, and int8

def head_tensors(target) -> dict[str, torch.Tensor]:
    """What the file of a head with random weights holds."""
    from spin_core.draft import Eagle3Llama

    config = pruned._shallow(target.config, 2)
    config.layers_read = (0, 1, 2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = Eagle3Llama(config).double()
    body = {key: value.clone() for key, value in model.model.state_dict().items() if key != "embed_tokens.weight"}
    return {**body, "fc.weight": model.fc.weight.detach(), "draft_ids": torch.tensor(IDS, dtype=torch.int32)}


def test_head_in_a_file(tmp_path):
    target = llama()
    tensors, path = head_tensors(target), tmp_path / "head.safetensors"
    save_file(tensors, path, {"layers_read": "0,1,2"})
    drafter = pruned.load_pruned(path, target, VOCAB)
    model = drafter.model
    assert model.layers_read == (0, 1, 2) and model.model.embed_tokens.weight is target.model.embed_tokens.weight
    assert model.fc.weight.equal(tensors["fc.weight"]) and model.lm_head.weight.equal(target.lm_head.weight[IDS])
    assert model.model.layers[0].self_attn.q_proj.in_features == 2 * target.config.hidden_size
    for text in (None, "", "1", "0,1", "0,1,1", "0,1,3", "a,1,2", "-1,1,2"):
        save_file(tensors, path, None if text is None else {"layers_read": text})
        reason = "key 'fc.weight' has shape" if text in ("1", "0,1") else \
            f"layers_read {text!r} are not different layers"
        with pytest.raises(ValueError, match=reason):
            pruned.load_pruned(path, target, VOCAB)


def test_int8_rows_are_multiplied_out(tmp_path):
    target, path = llama(), tmp_path / "small.safetensors"
    tensors = tensors_of(target)
    stored = {}
    for key, value in tensors.items():
        if value.dim() == 2:
            stored[key], stored[f"{key}.scale"] = to_int8(value)
        else:
            stored[key] = value
    save_file(stored, path)
    loaded = pruned.load_pruned(path, target, VOCAB).model.model.state_dict()
    for key, value in tensors.items():
        if key != "draft_ids":
            bound = value.abs().amax(-1, keepdim=True) / 254 * 1.01 if value.dim() == 2 else 0
            assert ((loaded[key] - value).abs() <= bound).all()
    del stored["layers.0.mlp.up_proj.weight.scale"]
    save_file(stored, path)
    with pytest.raises(ValueError,
                       match="key 'layers.0.mlp.up_proj.weight.scale' must hold a number for each of the 24"):
        pruned.load_pruned(path, target, VOCAB)


def test_fed_with_several_states(tmp_path):
    target, path = llama(), tmp_path / "fed.safetensors"
    width = target.config.hidden_size
    tensors = {**tensors_of(target), "fuse.weight": torch.randn(width, 2 * width, dtype=torch.float64),
               "fc.weight": torch.randn(width, 3 * width, dtype=torch.float64)}
    save_file(tensors, path, {"layers_read": "0,1,last"})
    model = pruned.load_pruned(path, target, VOCAB).model
    assert model.layers_read == (0, 1, LAST) and model.fc.weight.equal(tensors["fc.weight"])
    states = torch.randn(2, 3, 3 * width, dtype=torch.float64)
    assert model.fed(states).equal(torch.nn.functional.linear(states, model.fc.weight))
