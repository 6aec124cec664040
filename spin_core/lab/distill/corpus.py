"""What the target says, as token ids on disk: shards that appear whole or not at all.

A shard is a safetensors file: ``tokens`` int32 (all sequences end to end, prompt and answer), ``lengths``,
``prompt_lengths`` int32 and ``temperatures`` float32, one entry per sequence. The first 1 / HELD_OUT of each shard
is never trained on.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from spin_core.files import writing

HELD_OUT = 32


@dataclass
class Shard:
    """S sequences: ``tokens [N]``, ``lengths [S]``, ``prompt_lengths [S]``, ``temperatures [S]``."""

    tokens: Tensor
    lengths: Tensor
    prompt_lengths: Tensor
    temperatures: Tensor

    @staticmethod
    def build(prompts: list[list[int]], answers: list[list[int]], temperatures: list[float]) -> "Shard":
        return Shard(torch.tensor([t for p, a in zip(prompts, answers) for t in p + a], dtype=torch.int32),
                     torch.tensor([len(p) + len(a) for p, a in zip(prompts, answers)], dtype=torch.int32),
                     torch.tensor([len(p) for p in prompts], dtype=torch.int32), torch.tensor(temperatures))

    @staticmethod
    def join(shards: list["Shard"]) -> "Shard":
        return Shard(*(torch.cat([getattr(s, name) for s in shards]) for name in Shard.__dataclass_fields__))

    @property
    def starts(self) -> Tensor:
        return self.lengths.long().cumsum(0) - self.lengths

    @property
    def answer_tokens(self) -> int:
        return int((self.lengths - self.prompt_lengths).sum())

    @property
    def held_out(self) -> int:
        """How many sequences, from the first on, are for evaluation."""
        return -(-len(self.lengths) // HELD_OUT)

    def sequence(self, i: int) -> tuple[list[int], list[int]]:
        """Prompt and answer of sequence ``i``."""
        start = int(self.starts[i])
        ids = self.tokens[start:start + int(self.lengths[i])].tolist()
        return ids[:int(self.prompt_lengths[i])], ids[int(self.prompt_lengths[i]):]

    def take(self, index: Tensor) -> "Shard":
        """The sequences ``index``, in that order."""
        rows = torch.cat([torch.arange(s, s + n) for s, n in zip(self.starts[index].tolist(),
                                                                 self.lengths[index].tolist())])
        return Shard(self.tokens[rows], self.lengths[index], self.prompt_lengths[index], self.temperatures[index])


def paths(folder: Path) -> list[Path]:
    """The finished shards, in order."""
    return sorted(folder.glob("shard-*.safetensors"))


def read(path: Path) -> Shard:
    """ValueError, naming the file, where it is damaged."""
    try:
        return Shard(**load_file(path))
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}): delete the shards from its number on; the same command makes "
                         "them anew") from error


def seed_of(path: Path) -> int:
    """The seed that a shard was made with."""
    with safe_open(path, framework="pt") as file:
        return int(file.metadata()["seed"])


def write(path: Path, shard: Shard, metadata: dict[str, str] | None = None) -> None:
    """Under another name first: a file that has its name is complete."""
    save_whole(path, {name: t.contiguous() for name, t in vars(shard).items()}, metadata)


def save_whole(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """``save_file`` that never leaves half a file under ``path``."""
    with writing(path) as part:
        save_file(tensors, part, metadata)


def fingerprint(shards: Iterable[Shard]) -> str:
    """SHA-256 over the sequences: which data a drafter was made from."""
    digest = hashlib.sha256()
    for shard in shards:
        for tensor in (shard.tokens, shard.lengths, shard.prompt_lengths):
            digest.update(tensor.to(torch.int32).numpy().tobytes())
    return digest.hexdigest()
