"""Tables of habits as files: made, loaded by name or path, and refused when they do not fit."""

from __future__ import annotations

import pytest
import torch
from fakes import WORDS, llama, tokenizer
from safetensors.torch import save_file

from spin_core import zoo
from spin_core.lab.distill.corpus import Shard
from spin_core.lab.distill.table import TableRecipe, make_table, write_table
from spin_core.draft import DraftTable
from spin_core.draft.table import key
from spin_core.zoo import pruned, weights
from spin_core.zoo.table import load_table

VOCAB = len(WORDS)
SHARD = Shard.build([[1, 2], [3]], [[4, 5, 6, 4, 5], [4, 5]], [0.0, 0.0])
METADATA = {"kind": "table", "vocab_size": str(VOCAB)}


@pytest.fixture
def file(tmp_path):
    write_table(tmp_path / "habits.safetensors", [SHARD], VOCAB, TableRecipe(100, 0.4))
    return tmp_path / "habits.safetensors"


def test_a_file_holds_the_table_and_says_what_it_is(file):
    table, made = load_table(file, VOCAB), make_table([SHARD], VOCAB, 100)
    assert (table.name, table.vocab_size) == ("habits", VOCAB) and "habits" in table.description
    assert torch.equal(table.contexts, made["contexts"]) and torch.equal(table.followers, made["followers"])
    assert dict(zip(table.contexts.tolist(), table.followers.tolist()))[key([4], VOCAB)] == 5
    metadata = weights.read(file)[1]
    assert metadata["kind"] == "table" and metadata["answer_tokens"] == "7" and len(metadata["data"]) == 64


def test_through_load(file, save):
    folder = save("big", llama(), tokenizer())
    family = zoo.load(target=folder, drafters=[file, "ngram"])
    assert list(family.drafters) == ["habits"] and isinstance(family.drafters["habits"], DraftTable)
    ready = load_table(file, VOCAB)
    ready.name = "mine"
    assert list(zoo.load(target=folder, drafters=[ready]).drafters) == ["mine"]
    ready.vocab_size += 1
    with pytest.raises(ValueError, match=f"'mine': it was made for {VOCAB + 1} ids"):
        zoo.load(target=folder, drafters=[ready])


def test_tables_come_last_so_that_a_model_is_the_default(file, tmp_path):
    file.rename(tmp_path / "table-x.safetensors")
    save_file({"a": torch.zeros(9999)}, tmp_path / "pruned-9L.safetensors")
    assert list(pruned.shipped(tmp_path)) == ["pruned-9L", "table-x"]


@pytest.mark.parametrize("contexts, followers, metadata, reason", [
    ([3, 2], [1, 1], METADATA, "do not ascend"), ([2, 2], [1, 1], METADATA, "do not ascend"),
    ([0, 2], [1, 1], METADATA, "keys that stand for no"), ([1, 2**62], [1, 1], METADATA, "keys that stand for no"),
    ([1], [VOCAB], METADATA, f"vocabulary of {VOCAB}"), ([1], [-1], METADATA, f"vocabulary of {VOCAB}"),
    ([1, 2], [1], METADATA, "of one length"), ([1], [1], {"kind": "table", "vocab_size": "7"}, "made for 7 ids"),
    ([1], [1], {"kind": "table"}, "made for None ids")])
def test_a_bad_file_is_named_with_its_reason(tmp_path, contexts, followers, metadata, reason):
    path = tmp_path / "bad.safetensors"
    save_file({"contexts": torch.tensor(contexts), "followers": torch.tensor(followers, dtype=torch.int32)}, path,
              metadata)
    with pytest.raises(ValueError, match=reason) as failure:
        load_table(path, VOCAB)
    assert str(failure.value).startswith(f"{path}: ")


def test_a_file_with_other_keys_is_refused(tmp_path):
    path = tmp_path / "bad.safetensors"
    save_file({"contexts": torch.tensor([1])}, path, METADATA)
    with pytest.raises(ValueError, match="this file has 'contexts'"):
        load_table(path, VOCAB)
