"""What the zoo loads: a target with its tokenizer, and the drafters that go with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import jinja2
import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from .table import DraftTable


@dataclass
class DraftModel:
    """A model drafter before it is attached to an engine.

    ``model`` is a causal LM in eval mode that reads target ids.
    ``ids [Vd]`` int64: the target ids its Vd logits stand for, ascending. None: column v is target id v, and
    columns from the family's ``vocab_size`` on, where its head is padded, stand for nothing.
    ``max_context`` is the longest sequence it may see, in tokens.
    """

    name: str
    model: PreTrainedModel
    ids: Tensor | None
    max_context: int
    description: str = ""


@dataclass
class Family:
    """A target, its tokenizer and its drafters, on one device in one dtype.

    ``vocab_size`` is the number of ids that mean something: heads are often padded to a round width, and no
    id from ``vocab_size`` on may ever be emitted. ``stop_ids`` are the ids where ``generate`` would stop.
    """

    name: str
    target: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    drafters: dict[str, DraftModel | DraftTable]
    vocab_size: int
    stop_ids: tuple[int, ...]
    max_context: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32

    def encode(self, prompt: str | Sequence[dict]) -> list[int]:
        """Token ids of a prompt.

        With a chat template, a string is one user message, a list holds ``{"role", "content"}`` messages, and
        the generation prompt is added. Without one only a string is accepted and it is encoded as it is.
        Raises ValueError for messages that the template cannot take, and for characters that are no text.
        """
        for text in [prompt] if isinstance(prompt, str) else [message["content"] for message in _messages(prompt)]:
            _check_text(text)
        if self.tokenizer.chat_template:
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else _messages(prompt)
            try:
                return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True,
                                                          return_dict=False)
            except jinja2.TemplateError as error:       # such as "roles must alternate"
                raise ValueError(f"{self.name}'s chat template refuses these messages: {error}") from error
        if not isinstance(prompt, str):
            raise ValueError(f"{self.name}'s tokenizer has no chat template: give the prompt as a string")
        return self.tokenizer.encode(prompt)

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """Text of token ids, special tokens left out."""
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _check_text(text: str) -> None:
    """ValueError for half of a surrogate pair, as an undecodable argument of the command line holds it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the prompt holds {text[error.start]!r}, half of a surrogate pair, which is no text"
                         ) from None


def _messages(prompt: Sequence[dict]) -> list[dict]:
    """The messages as a list, each checked to be a dict with string ``role`` and ``content``."""
    for number, message in enumerate(prompt):
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)
                and isinstance(message.get("content"), str)):
            raise ValueError(f"message {number} must be a dict with the strings 'role' and 'content', "
                             f"got {message!r}")
    if not prompt:
        raise ValueError("an empty list of messages is no prompt")
    return list(prompt)
