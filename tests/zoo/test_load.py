"""zoo.load with models of one's own: what is accepted, what is refused, and in which words."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from fakes import WORDS, llama, tokenizer
from hypothesis import given
from hypothesis import strategies as st

from spin_core import zoo
from spin_core.zoo import compat, pruned

CHAT = "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + ' ' }}{% endfor %}" \
       "{% if add_generation_prompt %}{{ '<s>' }}{% endif %}"
VOCAB = len(WORDS)


@torch.inference_mode()
def logits(model) -> torch.Tensor:
    return model(torch.arange(3, 9)[None]).logits[0]


def load(**arguments) -> zoo.Family:
    return zoo.load(dtype=torch.float64, **arguments)


def test_family_of_ones_own(save):
    target, drafter = llama(), llama(layers=1, seed=1)
    family = load(target=save("big", target, tokenizer()),
                  drafters=[save("small", drafter, tokenizer()), "ngram", "none"])
    assert (family.name, family.vocab_size, family.stop_ids, family.max_context) == ("big", VOCAB, (2,), 64)
    assert (family.device, family.dtype) == (torch.device("cpu"), torch.float64)
    assert list(family.drafters) == ["small"]
    small = family.drafters["small"]
    assert (small.name, small.ids, small.max_context) == ("small", None, 64)
    assert not small.model.training and not family.target.training
    assert not any(p.requires_grad for p in [*small.model.parameters(), *family.target.parameters()])
    for loaded, saved in ((family.target, target), (small.model, drafter)):
        torch.testing.assert_close(logits(loaded), logits(saved), rtol=1e-12, atol=1e-12)


def test_dtype_and_default_of_no_drafters(save):
    family = zoo.load(target=save("m", llama(), tokenizer()))
    assert family.dtype == torch.float32 == family.target.dtype and family.drafters == {}


@pytest.mark.parametrize("ids, stop", [([5, 2], (2, 5)), (None, (2,))], ids=["several", "the tokenizer's"])
def test_stop_ids(save, ids, stop):
    model = llama(eos_token_id=ids)
    model.generation_config.eos_token_id = ids
    assert load(target=save("m", model, tokenizer())).stop_ids == stop


# -- vocabularies

def test_vocab_size_is_what_has_a_name_and_a_row(save):
    def size(head: int, words) -> int:
        return compat.effective_vocab_size(llama(head), tokenizer(words))

    assert size(24, WORDS) == 16                        # padded head
    assert size(16, WORDS) == 16
    assert size(14, WORDS) == 14                        # tokens that the model has no row for
    gap = {word: index for index, word in enumerate(WORDS)} | {"added": 20}
    assert size(24, gap) == 21                          # the highest id counts, not the number of entries


def test_padded_heads_of_any_width_go_together(save):
    family = load(target=save("big", llama(24), tokenizer()),
                  drafters=[save("wider", llama(32), tokenizer()), save("tight", llama(16), tokenizer())])
    assert family.vocab_size == VOCAB and [d.ids for d in family.drafters.values()] == [None, None]


def test_other_tokenizer_is_refused_with_the_first_difference(save):
    other = [*WORDS[:5], "other", *WORDS[6:-1], "last"]
    target, drafter = save("big", llama(), tokenizer()), save("small", llama(), tokenizer(other))
    with pytest.raises(ValueError, match="'small' .* id 5 is 'c' in the target and 'other' in the drafter"):
        load(target=target, drafters=[drafter])


def test_other_special_token_is_refused(save):
    swapped = [*WORDS[:2], "a", "</s>", *WORDS[4:]]
    target, drafter = save("big", llama(), tokenizer()), save("small", llama(), tokenizer(swapped))
    with pytest.raises(ValueError, match="id 2 is '</s>' in the target and 'a' in the drafter"):
        load(target=target, drafters=[drafter])


def test_token_that_only_the_target_has_is_refused(save):
    target, drafter = save("big", llama(), tokenizer()), save("small", llama(), tokenizer(WORDS[:-1]))
    with pytest.raises(ValueError, match="id 15 is 'm' in the target and no token in the drafter"):
        load(target=target, drafters=[drafter])


def test_tokens_that_only_the_drafter_has_do_not_matter(save):
    family = load(target=save("big", llama(), tokenizer()),
                  drafters=[save("small", llama(20), tokenizer([*WORDS, "extra"]))])
    assert "small" in family.drafters


@given(st.permutations(range(6)), st.integers(0, 6))
def test_tokenizers_agree_exactly_when_the_used_ids_do(order, used):
    class Words:
        def __init__(self, ids):
            self.ids = ids

        def get_vocab(self):
            return {f"t{word}": index for index, word in enumerate(self.ids)}

    first = next((i for i, word in enumerate(order[:used]) if word != i), None)
    if first is None:
        compat.check_tokenizers("d", Words(order), Words(range(6)), used)
    else:
        with pytest.raises(ValueError, match=f"id {first} is 't{first}' .* and 't{order[first]}'"):
            compat.check_tokenizers("d", Words(order), Words(range(6)), used)


def test_drafter_without_tokenizer(save):
    target = save("big", llama(), tokenizer())
    with pytest.warns(UserWarning, match="has no tokenizer.*assumed"):
        assert "bare" in load(target=target, drafters=[save("bare", llama())]).drafters
    with pytest.raises(ValueError, match=r"has no tokenizer, and its head \(17\)"):
        load(target=target, drafters=[save("odd", llama(17))])


def test_target_without_tokenizer(save):
    with pytest.raises(ValueError, match="has no tokenizer"):
        load(target=save("bare", llama()))


def test_drafter_that_cannot_read_every_id(save):
    target = save("big", llama(), tokenizer())
    with pytest.raises(ValueError, match="'small': it can read only ids below 14, the target emits .* 15"):
        load(target=target, drafters=[save("small", llama(14), tokenizer())])


# -- drafters handed in as objects

def draft_model(ids=None, vocab: int = VOCAB, name: str = "mine") -> zoo.DraftModel:
    model = llama(vocab)
    if ids is not None:
        model.lm_head = torch.nn.Linear(16, len(ids), bias=False, dtype=torch.float64)
        ids = torch.tensor(ids)
    return zoo.DraftModel(name, model, ids, 64)


def test_draft_model_objects(save):
    mine = draft_model([0, 3, 15])
    family = load(target=save("big", llama(), tokenizer()), drafters=[mine, draft_model(name="other")])
    assert family.drafters["mine"] is mine and list(family.drafters) == ["mine", "other"]


@pytest.mark.parametrize("spoil, reason", [
    (lambda d: setattr(d, "ids", torch.tensor([0, 3])), r"int64 of shape \[3\]"),
    (lambda d: setattr(d, "ids", torch.tensor([0, 3, 15], dtype=torch.int32)), "int64"),
    (lambda d: setattr(d, "ids", torch.tensor([0, 15, 3])), "ascend"),
    (lambda d: setattr(d, "ids", torch.tensor([0, 3, 16])), "16 ids"),
    (lambda d: setattr(d, "ids", torch.tensor([-1, 3, 15])), "16 ids"),
    (lambda d: setattr(d, "ids", None), "its logits have 3 columns"),
    (lambda d: setattr(d, "name", "ngram"), "every engine has"),
    (lambda d: d.model.to("meta"), "it is on meta, the target on cpu"),
], ids=["short", "int32", "unsorted", "too large", "negative", "no ids", "reserved name", "device"])
def test_draft_model_that_does_not_fit(save, spoil, reason):
    drafter = draft_model([0, 3, 15])
    spoil(drafter)
    with pytest.raises(ValueError, match=f"{drafter.name!r}.*{reason}"):
        load(target=save("big", llama(), tokenizer()), drafters=[drafter])


# -- names

def test_unknown_names_list_the_known_ones(save, monkeypatch):
    with pytest.raises(ValueError, match="unknown model family 'llama'; known: smollm2"):
        zoo.load("llama")
    with pytest.raises(ValueError, match="unknown drafter 'prund'; known for big: ngram, none"):
        load(target=save("big", llama(), tokenizer()), drafters=["prund"])
    monkeypatch.setattr(zoo, "ensure", lambda name: save("big", llama(), tokenizer()))
    with pytest.raises(ValueError, match=f"known for smollm2: {', '.join(pruned.shipped())}, ngram, none"):
        zoo.load("smollm2", drafters=["prund"])


def test_same_name_twice(save, tmp_path):
    target = save("big", llama(), tokenizer())
    with pytest.raises(ValueError, match="two drafters are called 'x'"):
        load(target=target, drafters=[save("x", llama(), tokenizer()), draft_model(name="x")])


def test_one_drafter_instead_of_a_list(save):
    with pytest.raises(TypeError, match=r"must be a list, such as \['pruned-2L-8k'\]"):
        zoo.load(drafters="pruned-2L-8k")


def test_missing_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="sees no CUDA device"):
        zoo.load(device="cuda")


@pytest.mark.parametrize("device", ["abacus", "meta", "cuda:99", "xpu:99"])
def test_a_device_that_torch_cannot_compute_on(device):
    with pytest.raises(ValueError, match=f"device '{device}' cannot be used"):
        zoo.load(device=device)


# -- folders that cannot be loaded

def edit_config(folder, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def pickled(folder) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def truncated(folder) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def without_a_tensor(folder) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("spoil, reason", [
    (pickled, "holds no .safetensors file"),
    (truncated, "model.safetensors: not a complete safetensors file"),
    (without_a_tensor, "lack model.norm.weight"),
    (lambda f: edit_config(f, hidden_size=32), "mismatched"),
    (lambda f: (f / "config.json").write_text("{"), "config.json"),
    (lambda f: edit_config(f, model_type="weird", auto_map={"AutoConfig": "x.X", "AutoModel": "x.Y"}),
     "program code of its own"),
    (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer"),
], ids=["pickle", "truncated", "missing tensor", "shape", "config", "remote code", "tokenizer"])
@pytest.mark.parametrize("role", ["target", "drafter"])
def test_broken_folder(save, spoil, reason, role):
    good, bad = save("good", llama(), tokenizer()), save("bad", llama(), tokenizer())
    spoil(bad)
    with pytest.raises(ValueError, match=reason) as failure:
        load(target=bad) if role == "target" else load(target=good, drafters=[bad])
    assert str(bad) in str(failure.value)


def test_no_such_folder(tmp_path):
    with pytest.raises(ValueError, match="no such folder, and not a hub name"):
        load(target=tmp_path / "nothing")


def test_hub_name_without_network(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="(?s)target 'nobody/nothing' cannot be loaded.*Without a network"):
        load(target="nobody/nothing")


# -- text

def test_plain_text(save):
    family = load(target=save("m", llama(), tokenizer()))
    assert family.encode("a b zebra") == [3, 4, 0] and family.encode("") == []
    assert family.decode([3, 4, 2]) == "a b" == family.decode(torch.tensor([3, 4, 2]))
    with pytest.raises(ValueError, match="m's tokenizer has no chat template"):
        family.encode([{"role": "a", "content": "b"}])


def test_chat(save):
    family = load(target=save("m", llama(), tokenizer(["user", *WORDS], CHAT)))
    text = {word: index for index, word in enumerate(["user", *WORDS])}
    assert family.encode("a b") == [text[w] for w in ("user", "a", "b", "<s>")]
    assert family.encode([{"role": "a", "content": "b"}, {"role": "c", "content": "d"}]) \
        == [text[w] for w in ("a", "b", "c", "d", "<s>")]


@pytest.mark.parametrize("messages", [[], [{"role": "user"}], [{"role": "user", "content": 3}], ["a"]])
def test_messages_that_make_no_sense(save, messages):
    family = load(target=save("m", llama(), tokenizer(template=CHAT)))
    with pytest.raises(ValueError, match="message"):
        family.encode(messages)


def test_template_that_refuses(save):
    template = "{{ raise_exception('roles must alternate') }}"
    family = load(target=save("m", llama(), tokenizer(template=template)))
    with pytest.raises(ValueError, match="m's chat template refuses these messages: roles must alternate"):
        family.encode("a")


def test_importing_the_zoo_does_not_import_transformers():
    code = "import sys, spin_core.zoo; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("template", [None, CHAT])
def test_half_of_a_surrogate_pair_is_refused_in_words(save, template):
    """As an argument that is no UTF-8 comes from the command line."""
    family = load(target=save("m", llama(), tokenizer(template=template)))
    for prompt in ["a \udcff"] + ([[{"role": "user", "content": "\ud83d"}]] if template else []):
        with pytest.raises(ValueError, match="half of a surrogate pair"):
            family.encode(prompt)
