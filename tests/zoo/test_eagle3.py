"""EAGLE-3 heads as folders: the same numbers as the package that made them, both layouts, and what is refused.

The folders in ``heads/`` are made by ``make_heads.py`` with the ``speculators`` package.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from fakes import WORDS, llama, tokenizer
from safetensors.torch import load_file, save_file

from spin_core import zoo
from spin_core.lab.distill.unroll import unroll
from spin_core.draft import Eagle3Llama
from spin_core.lab.distill import heads
from spin_core.zoo import speculators

HEADS = Path(__file__).with_name("heads")
NAMES = sorted(path.name for path in HEADS.iterdir() if path.is_dir())
VOCAB = len(WORDS)


def target():
    """Eight layers of the heads' width, with an embedding that differs from theirs."""
    return llama(layers=8).float()


def load(folder: Path):
    return speculators.load(folder, target(), VOCAB)


@pytest.fixture
def head(tmp_path):
    """A copy of a head's folder, to be spoilt."""
    return shutil.copytree(HEADS / "one-layer", tmp_path / "head")


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_logits_are_those_of_speculators(name):
    """Of one pass over a text and of drafts of up to three tokens more, behind every position."""
    head, given = load(HEADS / name), load_file(HEADS / f"{name}.safetensors")
    model, expected = head.model, given["logits"]
    states, tokens, steps = given["states"][None], given["tokens"][None], len(expected)
    plain = model(tokens, model.fed(states)).logits[0]
    torch.testing.assert_close(plain, expected[0], rtol=1e-5, atol=1e-5)
    # here a text has a first token, which no head reads, and states stand at their own tokens
    depths = unroll(model, torch.cat([tokens[:, :1], tokens], 1), torch.cat([states, states[:, :1]], 1), steps)
    for step, body in enumerate(depths):
        count = tokens.shape[1] - step
        torch.testing.assert_close(model.lm_head(body[0, 1 + step:]), expected[step, :count], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", heads.LAYOUTS)
def test_round_trip(name, layout, tmp_path):
    head, goal = load(HEADS / name), target()
    if layout == "original" and head.model.config.num_hidden_layers > 1:
        with pytest.raises(ValueError, match="has 2 layers; the original layout knows one"):
            heads.save(head, tmp_path / name, goal, layout=layout)
        return
    heads.save(head, tmp_path / name, goal, layout=layout, dtype=torch.float32)
    assert speculators.is_head(tmp_path / name)
    again = speculators.load(tmp_path / name, goal, VOCAB)
    assert again.name == name and again.model.layers_read == head.model.layers_read
    assert (again.ids is None) == (head.ids is None) and (head.ids is None or again.ids.equal(head.ids))
    ours, theirs = head.model.state_dict(), again.model.state_dict()
    assert ours.keys() == theirs.keys() and all(ours[key].equal(theirs[key]) for key in ours)
    keys = load_file(tmp_path / name / "model.safetensors").keys()
    assert ("midlayer.hidden_norm.weight" in keys) == (layout == "original")
    assert ("layers.0.hidden_norm.weight" in keys) == (layout == "speculators")


def test_saved_tensors_are_those_that_speculators_saves(tmp_path):
    heads.save(load(HEADS / "one-layer"), tmp_path / "head", target(), dtype=torch.float32)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "head", HEADS / "one-layer"))
    assert ours.keys() == theirs.keys() and all(ours[key].equal(theirs[key]) for key in theirs)


def test_embedding_of_the_target_is_shared_and_stays_out_of_the_file(head, tmp_path):
    tensors = load_file(head / "model.safetensors")
    del tensors["embed_tokens.weight"]
    save_file(tensors, head / "model.safetensors")
    goal = target()
    drafter = speculators.load(head, goal, VOCAB)
    assert drafter.model.model.embed_tokens.weight is goal.model.embed_tokens.weight
    heads.save(drafter, tmp_path / "again", goal)
    assert "embed_tokens.weight" not in load_file(tmp_path / "again" / "model.safetensors")
    assert {t.device.type for t in [*drafter.model.parameters(), *drafter.model.buffers()]} == {"cpu"}


def test_columns_are_put_in_the_order_of_their_ids(head):
    """A checkpoint may list its ids in any order; drafters are told apart by ascending ones."""
    tensors = load_file(head / "model.safetensors")
    before = speculators.load(head, target(), VOCAB)
    order = torch.randperm(len(tensors["d2t"]))
    ids = (tensors["d2t"] + torch.arange(len(order)))[order]
    tensors |= {"d2t": ids - torch.arange(len(order)), "lm_head.weight": tensors["lm_head.weight"][order]}
    save_file(tensors, head / "model.safetensors")
    after = speculators.load(head, target(), VOCAB)
    assert after.ids.equal(before.ids) and after.model.lm_head.weight.equal(before.model.lm_head.weight)


def test_through_load(save):
    family = zoo.load(target=save("big", target(), tokenizer()), drafters=[HEADS / "one-layer", HEADS / "two-layers"])
    assert list(family.drafters) == ["one-layer", "two-layers"]
    assert all(isinstance(d.model, Eagle3Llama) and not d.model.training for d in family.drafters.values())


def spoil(**changes):
    """Change tensors (None: leave out) of a folder, "__" for "." in the key."""
    def apply(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        for key, value in changes.items():
            tensors.pop(key.replace("__", "."), None)
            if value is not None:
                tensors[key.replace("__", ".")] = value
        save_file(tensors, folder / "model.safetensors")
    return apply


def state(**changes):
    """Change the config of a folder."""
    def apply(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return apply


@pytest.mark.parametrize("change, reason", [
    (spoil(fc__weight=None), "key 'fc.weight' is missing"),
    (spoil(lm_head__weight=None), "key 'lm_head.weight' is missing"),
    (spoil(norm__weight=None), "key 'norm.weight' is missing"),
    (spoil(norm__weight=torch.zeros(8)), r"key 'norm.weight' has shape \[8\], this target needs \[16\]"),
    (spoil(layers__0__extra=torch.zeros(2)), "key 'layers.0.extra' is not a part of this drafter"),
    (spoil(d2t=None), "key 'd2t' is missing, and the head has 10 columns for 16 ids"),
    (spoil(d2t=torch.zeros(4, dtype=torch.int64)), "key 'd2t' must hold 10 integers"),
    (spoil(d2t=torch.zeros(10)), "key 'd2t' must hold 10 integers"),
    (spoil(d2t=torch.full((10,), 7)), "key 'd2t' must name different ids of the target's 16"),
    (spoil(d2t=-torch.arange(10)), "key 'd2t' must name different ids of the target's 16"),
    (spoil(t2d=torch.ones(16, dtype=torch.bool)), "keys 'd2t' and 't2d' name different ids"),
    (state(eagle_aux_hidden_state_layer_ids=[1, 2, 9]),
     r"eagle_aux_hidden_state_layer_ids \[1, 2, 9\] are not different"),
    (state(eagle_aux_hidden_state_layer_ids=[1, 1, 2]), "are not different layers of a target of 8"),
    (state(eagle_aux_hidden_state_layer_ids=[1, 2]),
     r"key 'fc.weight' has shape \[16, 48\], this target needs \[16, 32\]"),
    (state(transformer_layer_config={"model_type": "qwen3"}), "layers of the kind 'qwen3'; only Llama's are known"),
    (lambda folder: (folder / "model.safetensors").unlink(), "holds no .safetensors file"),
], ids=lambda x: x if isinstance(x, str) else "")
def test_bad_heads_name_what_is_wrong(head, change, reason):
    change(head)
    with pytest.raises(ValueError, match=reason) as failure:
        speculators.load(head, target(), VOCAB)
    assert str(failure.value).startswith(str(head))


def test_only_heads_are_saved_as_heads(tmp_path):
    drafter = zoo.DraftModel("plain", target(), None, 64)
    with pytest.raises(ValueError, match="'plain' is no EAGLE-3 head but a LlamaForCausalLM"):
        heads.save(drafter, tmp_path / "head", target())
    with pytest.raises(ValueError, match="unknown layout 'other'; known: speculators, original"):
        heads.save(load(HEADS / "one-layer"), tmp_path / "head", target(), layout="other")


def test_head_from_the_hub(save, monkeypatch):
    """A hub name is fetched, its safetensors only if it is a head, and keeps its short name."""
    asked = []

    def fetched(repository, *path, allow_patterns=None):
        asked.append((repository, *path, *(allow_patterns or ())))
        return str(HEADS / "one-layer" / path[0]) if path else str(HEADS / "one-layer")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetched)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fetched)
    family = zoo.load(target=save("big", target(), tokenizer()), drafters=["someone/a-head"])
    assert list(family.drafters) == ["a-head"] and isinstance(family.drafters["a-head"].model, Eagle3Llama)
    assert asked == [("someone/a-head", "config.json"), ("someone/a-head", "*.json", "*.safetensors")]
