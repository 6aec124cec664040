"""What a caller asks for, and what the engine knows about it while it runs."""

from __future__ import annotations

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
        def check(ok: bool, rule: str) -> None:
            if not ok:
                raise ValueError(f"SamplingParams: {rule}")

        def whole(name: str, value) -> int:
            try:
                return operator.index(value)
            except TypeError:
                raise ValueError(f"SamplingParams: {name} must be an integer, got {value!r}") from None

        def several(name: str, value) -> tuple:
            try:
                return tuple(value)
            except TypeError:
                raise ValueError(f"SamplingParams: {name} must be a list or a tuple, got {value!r}") from None

        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else several("stop", self.stop))
        for name in ("stop_ids", "suppress_tokens"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(whole(name, i) for i in several(name, value)))
        for name in ("top_k", "max_new_tokens", "seed", "no_repeat_ngram_size", "n"):
            if (value := getattr(self, name)) is not None or name in ("top_k", "max_new_tokens", "n"):
                object.__setattr__(self, name, whole(name, value))
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            value = getattr(self, name)
            if value is None and name == "repetition_penalty":
                continue
            check(isinstance(value, Real), f"{name} must be a number, got {value!r}")
            try:
                object.__setattr__(self, name, float(value))
            except OverflowError:
                raise ValueError(f"SamplingParams: {name} is too large") from None
        # `not (x >= 0)` also refuses NaN, which `x < 0` lets through
        check(0.0 <= self.temperature < float("inf"), f"temperature must be finite and >= 0, got {self.temperature}")
        check(0 <= self.top_k < 2**63, f"top_k must be in [0, 2**63) (0 = off), got {self.top_k}")
        check(0.0 < self.top_p <= 1.0, f"top_p must be in (0, 1], got {self.top_p}")
        check(0.0 <= self.min_p <= 1.0, f"min_p must be in [0, 1], got {self.min_p}")
        check(self.max_new_tokens >= 0, f"max_new_tokens must be >= 0, got {self.max_new_tokens}")
        check(self.seed is None or 0 <= self.seed < 2**63, f"seed must be in [0, 2**63), got {self.seed}")
        check(self.repetition_penalty is None or 0 < self.repetition_penalty < float("inf"),
              f"repetition_penalty must be finite and > 0 (1 = off), got {self.repetition_penalty}")
        check((self.no_repeat_ngram_size or 0) >= 0, f"no_repeat_ngram_size must be >= 0 (0 = off), got "
                                                     f"{self.no_repeat_ngram_size}")
        check(min(self.suppress_tokens or (0,)) >= 0, f"suppress_tokens must be ids, got {self.suppress_tokens}")
        check(self.n >= 1, f"n must be >= 1, got {self.n}")
        check(all(isinstance(s, str) and s for s in self.stop),
              f"stop strings must be text, not empty, got {self.stop}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def adjusts_logits(self) -> bool:
        """Whether a penalty or suppression changes the target's logits (:mod:`spin_core.logits`)."""
        return self.repetition_penalty not in (None, 1.0) or bool(self.no_repeat_ngram_size or self.suppress_tokens)

    def with_(self, **changes) -> "SamplingParams":
        return replace(self, **changes)


_ids = itertools.count()


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
    id: int = field(default_factory=lambda: next(_ids))
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
