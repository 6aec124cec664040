"""What a caller asks for, and what the engine knows about it while it runs."""

import itertools
import operator
from dataclasses import dataclass, field, replace
from enum import Enum
from numbers import Integral, Real

from spin_core.text import OutputText


class FinishReason(str, Enum):
    """Why a request ended."""

    STOP = "stop"            # a stop token or a stop string
    LENGTH = "length"        # max_new_tokens, or the target's context is full
    CANCELLED = "cancelled"
    ERROR = "error"          # the request failed alone; `Request.error` says why


@dataclass(frozen=True)
class SamplingParams:
    """How to turn the target's logits into tokens, and when to stop.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 switch the filter off. ``stop_ids`` None
    means the model's own end-of-text ids; an empty tuple means "never stop on a token". ``stop`` holds strings:
    the text is cut before the first of them. Every random number is a pure function of the seed and the positions
    in the text: with one drafter and gamma, ``seed``, prompt and limits fix a sampled text, whatever else is served.
    Another drafter or gamma, or a limit that cuts a draft short, draws another text from the same distribution; a
    greedy text is always the same. ``seed`` None: the engine gives each such request the next of the numbers 0, 1, ...

    ``repetition_penalty``, ``no_repeat_ngram_size`` and ``suppress_tokens`` act on the target's logits as in
    transformers' ``generate``; None is what the model's generation config says. ``n``: samples of each prompt.
    ``logprobs``: keep the log-probability of each emitted token under the target, before temperature, filters and
    penalties, in ``Request.logprobs``.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_new_tokens: int = 128
    stop_ids: tuple[int, ...] | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    suppress_tokens: tuple[int, ...] | None = None
    n: int = 1
    logprobs: bool = False

    def __post_init__(self) -> None:
        for name, kind, optional, rule, allowed in _RULES:
            value = getattr(self, name)
            if value is None and optional:
                continue
            try:
                value = kind(value)
            except (TypeError, ValueError, OverflowError):
                raise ValueError(f"SamplingParams: {name} must be {_KINDS[kind]}, got {value!r}") from None
            if not allowed(value):
                raise ValueError(f"SamplingParams: {name} must be {rule}, got {value!r}")
            object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def adjusts_logits(self) -> bool:
        """Whether a penalty or suppression changes the target's logits (:mod:`spin_core.logits`)."""
        return self.repetition_penalty not in (None, 1.0) or bool(self.no_repeat_ngram_size or self.suppress_tokens)

    def with_(self, **changes) -> "SamplingParams":
        return replace(self, **changes)


# ---- how parameters are checked

def _number(value) -> float:
    if not isinstance(value, Real):
        raise TypeError
    return float(value)


def _ids(value) -> tuple[int, ...]:
    return tuple(map(operator.index, value))


def _strings(value) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


_KINDS = {_number: "a finite number", operator.index: "an integer", _ids: "a list of integers",
          _strings: "text, or a list of it"}
# The fields of SamplingParams: how a value is read, whether it may be None, and the rule that it keeps. NaN keeps none.
_RULES = (
    ("temperature", _number, False, "finite and >= 0", lambda x: 0 <= x < float("inf")),
    ("top_k", operator.index, False, "in [0, 2**63) (0 = off)", lambda x: 0 <= x < 2**63),
    ("top_p", _number, False, "in (0, 1]", lambda x: 0 < x <= 1),
    ("min_p", _number, False, "in [0, 1]", lambda x: 0 <= x <= 1),
    ("max_new_tokens", operator.index, False, ">= 0", lambda x: x >= 0),
    ("stop_ids", _ids, True, "ids", lambda x: True),
    ("stop", _strings, False, "stop strings, none of them empty", lambda x: all(isinstance(s, str) and s for s in x)),
    ("seed", operator.index, True, "in [0, 2**63)", lambda x: 0 <= x < 2**63),
    ("repetition_penalty", _number, True, "finite and > 0 (1 = off)", lambda x: 0 < x < float("inf")),
    ("no_repeat_ngram_size", operator.index, True, ">= 0 (0 = off)", lambda x: x >= 0),
    ("suppress_tokens", _ids, True, "ids, >= 0", lambda x: min(x, default=0) >= 0),
    ("n", operator.index, False, ">= 1", lambda x: x >= 1))


# ---- requests

_numbers = itertools.count()


@dataclass(eq=False)
class Request:
    """One prompt on its way through the engine.

    ``prompt_ids`` and ``output_ids`` together are the committed sequence; nothing drafted is in it before the
    target has verified it. ``text`` is the decoded output, cut before the first stop string; empty until the request
    has finished. ``gamma`` is how many tokens to draft per step, ``drafter`` the drafter's name; a selector may change
    both at any step, unless the drafter is ``pinned``: asked for by name. ``slot`` is the request's row in every cache,
    None while it is queued and after it has left the batch.
    """

    prompt_ids: list[int]
    params: SamplingParams
    drafter: str = "none"
    gamma: int = 0
    id: int = field(default_factory=lambda: next(_numbers))
    output_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    error: str | None = None
    slot: int | None = None
    stop_ids: frozenset[int] = frozenset()
    pinned: bool = False
    logprobs: list[float] = field(default_factory=list)     # of the output's tokens, where ``params`` ask for them
    decoded: OutputText | None = None                       # the text so far, where it is needed before the end

    @property
    def ids(self) -> list[int]:
        """The committed sequence, prompt and output."""
        return self.prompt_ids + self.output_ids

    @property
    def length(self) -> int:
        """Committed tokens, prompt and output."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def remaining(self) -> int:
        """How many tokens may still be emitted."""
        return self.params.max_new_tokens - len(self.output_ids)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def tail(self, start: int) -> list[int]:
        """The committed tokens from absolute index ``start`` on."""
        prompt = len(self.prompt_ids)
        return self.output_ids[start - prompt:] if start >= prompt else self.prompt_ids[start:] + self.output_ids

    def snapshot(self) -> "Request":
        """A copy of the request as it is now, for a thread that reads it while it grows."""
        return replace(self, output_ids=list(self.output_ids))


def check_whole(name: str, value: int, least: int) -> None:
    """Raise ValueError unless ``value`` is an integer and at least ``least``."""
    if not isinstance(value, Integral):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
