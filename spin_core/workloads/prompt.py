"""A prompt, and a named list of prompts."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass


class WorkloadError(ValueError):
    """A workload that cannot be read; the message names the file and line, or the names that exist."""


@dataclass(frozen=True)
class Prompt:
    """One conversation that waits for the model's next answer.

    ``dialogue`` holds (role, content) pairs, roles "system", "user" and "assistant", and ends with a user's
    turn. ``workload`` is the set the prompt was written for: in the mix it still says "chat", say.
    ``follow_ups`` are later user turns that make sense only after the model's own answer to this one
    (MT-Bench, Spec-Bench): send them one by one for the whole conversation.
    """

    id: str
    dialogue: tuple[tuple[str, str], ...]
    category: str
    split: str
    workload: str
    follow_ups: tuple[str, ...] = ()

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation as a chat template takes it, for ``family.encode``."""
        return [{"role": role, "content": content} for role, content in self.dialogue]

    @property
    def text(self) -> str:
        """The conversation for a reader: the bare prompt, or the turns with their speakers if there are several."""
        if len(self.dialogue) == 1:
            return self.dialogue[0][1]
        return "\n\n".join(f"{role.capitalize()}: {content}" for role, content in self.dialogue)


@dataclass(frozen=True)
class Workload:
    """A named, ordered list of prompts."""

    name: str
    prompts: tuple[Prompt, ...]

    def __len__(self) -> int:
        return len(self.prompts)

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.prompts)

    def split(self, name: str) -> "Workload":
        """The prompts of one split, in order. Raises WorkloadError when there are none."""
        chosen = tuple(p for p in self.prompts if p.split == name)
        if not chosen:
            known = ", ".join(sorted({p.split for p in self.prompts}))
            raise WorkloadError(f"workload {self.name!r} has no split {name!r}; it has: {known}")
        return Workload(self.name, chosen)

    def shuffled(self, seed: int) -> "Workload":
        """The prompts in an order fixed by ``seed`` and their ids alone, the same on every Python version."""
        def rank(prompt: Prompt) -> bytes:
            return hashlib.blake2b(f"{seed}:{prompt.id}".encode()).digest()

        return Workload(self.name, tuple(sorted(self.prompts, key=rank)))

    def first(self, count: int) -> "Workload":
        """At most the first ``count`` prompts."""
        if count < 1:
            raise WorkloadError(f"the number of prompts must be at least 1, got {count}")
        return Workload(self.name, self.prompts[:count])
