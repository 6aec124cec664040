"""The serving loop: admit, draft, verify, commit, and write down what happened.

One step serves every running request once. Its target pass is one flattened batch in which some requests read a chunk
of their prompt while others have their drafts verified; requests may draft different numbers of tokens, by
different drafters, under different sampling parameters.
"""

from __future__ import annotations

import operator
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral

import torch
from torch import Tensor

from spin_core.draft import Draft, Drafter, NullDrafter, Tree, pool
from spin_core.pipeline.ahead import Ahead
from spin_core.pipeline.conductor import Pipeline
from spin_core.pipeline.grouping import POLICIES
from spin_core.request import FinishReason, Request, SamplingParams
from spin_core.runtime import ModelRunner
from spin_core.runtime.tensor_parallel import parts_of
from spin_core.sampling import SamplingBatch, probabilities
from spin_core.select import Selector, make
from spin_core.selection import Selection
from spin_core.trace import Event, Trace
from spin_core.verify import verify_chain, verify_tree

Prompt = str | list[int] | list[dict]

DEFAULT_GAMMA = 4       # drafted tokens per step, where nobody says otherwise
PASSES = 2              # the same of drafters that take a pass per token, where a selector tries them on everyone


@dataclass
class _Work:
    """What one request brings to a step: the committed tokens that the target has not read yet."""

    request: Request
    feed: list[int]
    complete: bool      # `feed` reaches the end of the committed sequence, so what follows it can be decided


@dataclass
class _Group:
    """The requests of a step that share a drafter, and what it drafts for them. No draft: they still read prompts."""

    members: list[_Work]
    draft: Draft | None
    drafter: str
    began: float = 0.0
    seconds: float = 0.0
    error: Exception | None = None      # what the drafter raised

    @cached_property        # asking the device costs a wait
    def counts(self) -> list[int]:
        """Drafted tokens per member."""
        return self.draft.counts.tolist() if self.draft else [0] * len(self.members)


@dataclass
class _Outcome:
    """What one request gets out of a step."""

    drafted: list[int]
    accepted: int = 0
    tokens: list[int] = field(default_factory=list)     # accepted tokens and one of the target's own
    failed: bool = False
    laws: dict | None = None
    tree: dict | None = None        # see spin_core.trace.Event


@dataclass
class _Verified:
    """What a step knows once the target has spoken, nothing of it committed yet. Outcomes are in the groups' order."""

    groups: list[_Group]
    outcomes: list[_Outcome]
    began: float
    target_seconds: float
    verify_seconds: float


class Engine:
    """Serves requests for one model family, losslessly.

    ``Engine(family)`` is SPIN: ``selector="spin", verification="auto", pipeline="auto"``. ``Engine(family, NAME)`` is
    classical speculation: one drafter for all, and drafting waits for verification unless ``pipeline`` is given. So is
    ``Engine(family)`` with the family's first drafter where the target is spread over processes: they have no clock
    in common to decide by.

    ``drafter`` is who drafts for a request unless it is submitted with a drafter of its own. Names are those of the
    family's drafters, "ngram" (prompt lookup), "none" (plain decoding), and compositions such as "ngram+NAME": what
    lookup (or a table) finds, else what the other drafts; "tree:..." drafts token trees (:mod:`spin_core.draft.trees`),
    "sparse:..." looks at a part of the cache (:mod:`spin_core.runtime.ring`), "vote:..." lets several decide
    (:mod:`spin_core.draft.vote`); how such names are written, :func:`spin_core.draft.pool.names` tells. ``gamma``:
    drafted tokens per step, 4 by default; of a tree its depth at most, by default all of it.

    With a ``selector`` (a policy's name, or a :class:`spin_core.select.Selector`) it is chosen anew in every step who
    drafts for a request and how much, except for requests submitted with a drafter of their own. For a policy's name
    the pool is ``arms``, by default all of the family's drafters and "ngram", and ``gamma`` holds for all of them; by
    default those that take passes draft 2 tokens and those that look up 4, with "spin" fewer where that pays more.
    ``capacities`` bounds the requests a drafter serves at once. ``fast_switching``: a drafter reads the text of a
    request that comes to it in a second thread, beside the others' work; False makes all wait for it.

    ``max_batch`` requests run at once, each with room for ``max_len`` tokens of prompt and output; ``kv_tokens``
    bounds the tokens that the running requests may come to hold together (prompt + max_new_tokens each). Who does
    not fit waits in a queue, first come first served. ``prefill_chunk`` bounds the prompt tokens read per step.
    ``record_laws`` keeps p and q of every drafted position in the trace, for the lessons' widgets. ``verification`` is
    how the target attends to a ragged batch: "padded", "grouped", "decomposed" (SPIN's pieces), "per-request",
    "flex" (today's kernel without padding), or "auto", the cheapest of the first four on this device. It changes speed,
    not text.

    ``pipeline`` drafts for one part of the batch while another is verified: "off", a number of micro-batches, or
    "auto", which finds the best number by trying. A step then serves one micro-batch, and others may be under way when
    it returns; a request that is cancelled under way gives back its slot when it lands. ``grouping`` says who sits
    together (:mod:`spin_core.pipeline.grouping`). "ahead" launches a step before the host has read the last one's
    verdict, where nothing else has to be known for it (:mod:`spin_core.pipeline.ahead`). It changes speed, not text.

    Raises ValueError for unknown drafters and strategies, for a drafter beside a selector, and for impossible limits. A
    bad *request* never raises: it comes back finished with ``FinishReason.ERROR`` and says why, and the others go on.
    """

    def __init__(self, family, drafter: str | None = None, gamma: int | None = None, *, max_batch: int = 8,
                 max_len: int | None = None, kv_tokens: int | None = None, prefill_chunk: int = 512,
                 record_laws: bool = False, verification: str = "auto", selector: str | Selector | None = None,
                 arms: Sequence[str] | None = None, capacities: Mapping[str, int] | None = None,
                 fast_switching: bool = True, pipeline: str | int | None = None, grouping: str = "balanced") -> None:
        if drafter is not None and selector is not None:
            raise ValueError("Engine: a selector chooses drafters, drafter names one: give one of them")
        if parts_of(family.target) > 1:         # by the clock every process would decide something else
            if selector is not None or pipeline == "auto":
                raise ValueError("Engine: a target over several processes needs one drafter and a fixed pipeline")
            drafter = drafter or next(iter(family.drafters), "ngram")
        if pipeline is None:
            pipeline = "auto" if drafter is None else "off"
        if grouping not in POLICIES:
            raise ValueError(f"unknown grouping policy {grouping!r}; known: {', '.join(POLICIES)}")
        for name, value, least in (("gamma", gamma, 0), ("max_batch", max_batch, 1), ("max_len", max_len, 2),
                                   ("kv_tokens", kv_tokens, 2), ("prefill_chunk", prefill_chunk, 1)):
            if value is not None or name not in ("gamma", "max_len", "kv_tokens"):
                _check_whole(f"Engine: {name}", value, least)
        self.family = family
        self.max_len = min(max_len or 2048, family.max_context)
        self.max_batch = max_batch
        self.kv_tokens = kv_tokens or max_batch * self.max_len
        self.prefill_chunk = prefill_chunk
        self.record_laws = record_laws
        self.target = ModelRunner(family.target, max_batch, self.max_len, family.vocab_size, verification=verification,
                                  keep_states=any(map(pool.is_fed, family.drafters.values())),
                                  keep_layers=pool.layers_read(family.drafters.values()))
        self.drafters: dict[str, Drafter] = {"none": NullDrafter()}     # built when first used
        self.retired: dict[str, Exception] = {}
        self.drafter = drafter                                          # None: the selector chooses
        self.gamma = gamma                                              # None: as many as suits the drafter
        self.queue: deque[Request] = deque()
        self.running: list[Request] = []
        self.free_slots = list(range(max_batch))[::-1]
        self.trace = Trace()
        self.steps = 0
        if drafter is not None:
            self.drafter_called(drafter)
        self.selection = self._selection(selector, arms, gamma, capacities, fast_switching)
        self.pipeline = None if pipeline == "off" else Ahead(self) if pipeline == "ahead" else \
            Pipeline(self, pipeline, grouping)

    # ---- what callers use

    @property
    def drafter_names(self) -> list[str]:
        """Every name that ``drafter`` may take, compositions aside."""
        return pool.names(self.family)

    def submit(self, prompt: Prompt, params: SamplingParams | None = None, *, drafter: str | None = None,
               gamma: int | None = None) -> Request:
        """Queue a prompt: text, chat messages, or token ids. Returns the request: its ``output_ids`` grow as it runs,
        its ``text`` is there once it has finished.

        Raises TypeError for ``params`` that are none, ValueError for an unknown drafter or an impossible gamma.
        """
        if gamma is not None:
            _check_whole("Engine.submit: gamma", gamma, 0)
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise TypeError(f"Engine.submit: params must be a SamplingParams or None, got {params!r}")
        if self.selection and drafter is None:
            if gamma is not None:
                raise ValueError("Engine.submit: with a selector, gamma is for requests that name their drafter")
            request = Request([], params)
        else:
            name = drafter if drafter is not None else self.drafter
            suits = self.drafter_called(name).gamma or DEFAULT_GAMMA
            number = next(n for n in (gamma, self.gamma, suits) if n is not None)
            request = Request([], params, name, number, pinned=drafter is not None)
        self.trace.add("submit", request.id)
        try:
            request.prompt_ids = self._encode(prompt)
            self._check(request)
        except Exception as error:          # whatever is wrong with a prompt is a failure of its request alone
            self._finish(request, FinishReason.ERROR, str(error) or type(error).__name__)
            self._leave(request)
            return request
        request.stop_ids = frozenset(self.family.stop_ids if params.stop_ids is None else params.stop_ids)
        if params.max_new_tokens == 0:
            self._finish(request, FinishReason.LENGTH)
            self._leave(request)
        else:
            self.queue.append(request)
        return request

    def cancel(self, request: Request) -> None:
        """End a request now; what it has emitted stays in it. A finished request stays as it is."""
        if not request.finished:
            self._finish(request, FinishReason.CANCELLED)
            if not (self.pipeline and self.pipeline.under_way(request)):
                self._leave(request)

    def generate(self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None,
                 **submit) -> list[Request]:
        """Run all ``prompts`` to their end; the requests in the order of the prompts."""
        requests: list[Request] = []
        try:
            self._submit_all(requests, prompts, params, submit)
            while not all(r.finished for r in requests):
                self.step()
        finally:                        # an interrupt leaves nothing behind that the next call would have to serve
            self._end(requests)
        return requests

    def stream(self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None,
               **submit) -> Iterator[Event]:
        """Run all ``prompts`` and yield the trace's events as they happen, those of other requests included."""
        told = len(self.trace.events)
        requests: list[Request] = []
        try:
            self._submit_all(requests, prompts, params, submit)
            while True:
                while told < len(self.trace.events):
                    yield self.trace.events[told]
                    told += 1
                if all(r.finished for r in requests):
                    return
                self.step()
        finally:                        # a consumer that stops listening does not want the rest
            self._end(requests)

    def step(self) -> list[Event]:
        """Serve every running request once; the step's events. Without work it returns an empty list."""
        return self.pipeline.step() if self.pipeline else self._step()

    def _step(self) -> list[Event]:
        began = time.perf_counter()
        self._admit()
        if not self.running:
            return []
        return self._record(self._verify(self._draft(self._select(self._plan(self.running)))), began)

    # ---- the stages of a step, in their order

    def _admit(self) -> None:
        """Move requests from the queue into free slots while memory allows, in the order of arrival."""
        while self.queue and self.free_slots:
            if sum(map(self._reserved, [*self.running, self.queue[0]])) > self.kv_tokens:
                return
            request = self.queue.popleft()
            request.slot = self.free_slots.pop()
            self.running.append(request)
            self.trace.add("admit", request.id)

    def _plan(self, requests: list[Request]) -> list[_Work]:
        """Who reads what: decoding requests their one or few missing tokens, prompts a chunk of a shared budget."""
        work, budget = [], self.prefill_chunk
        for request in requests:
            # a step that failed behind the target's pass has left drafts in the cache; behind others this does nothing
            self.target.cache.truncate(request.slot, request.length - 1)
            feed = request.tail(self.target.cache.lengths[request.slot])
            if len(feed) > 1:
                feed, whole = feed[:budget], len(feed)
                budget -= len(feed)
                if feed:
                    work.append(_Work(request, feed, len(feed) == whole))
            else:
                work.append(_Work(request, feed, True))
        return work

    def _select(self, work: list[_Work], others: Sequence[Request] = (), aloft: Sequence[Request] = ()) -> list[_Work]:
        """Let the selector choose drafter and gamma of those who decode; ``others`` sit in other micro-batches."""
        if self.selection:
            self.selection.assign([w.request for w in work if w.complete], others, aloft)
        return work

    def _draft(self, work: list[_Work]) -> list[_Group]:
        """Have each drafter propose for its requests. Those of a drafter that raises go on without."""
        reading = [w for w in work if not w.complete]
        groups = [_Group(reading, None, "none")] if reading else []
        by_name: dict[str, list[_Work]] = {}
        for w in work:
            if w.complete:
                by_name.setdefault(w.request.drafter, []).append(w)
        for name, members in by_name.items():
            requests = [w.request for w in members]
            start, raised = time.perf_counter(), None
            try:
                drafter = self.drafter_called(name)
                draft = drafter.propose(requests, [self._num_draft(r, drafter) for r in requests])
                draft = draft.to(self.target.device)
            except Exception as error:      # losing a drafter must cost speed, never a request
                draft, raised = Draft.empty(len(requests), self.target.device), error
            self._synchronize()
            groups.append(_Group(members, draft, name, start, time.perf_counter() - start, raised))
        return groups

    def _verify(self, groups: list[_Group]) -> _Verified:
        """Let the target decide. Like drafting it may run beside the owner's thread, so nothing else changes here."""
        start = time.perf_counter()
        logits = self._run_target(groups)
        judging = time.perf_counter()
        outcomes = [outcome for group, rows in zip(groups, logits) for outcome in self._judge(group, rows)]
        return _Verified(groups, outcomes, start, judging - start, time.perf_counter() - judging)

    def _run_target(self, groups: list[_Group]) -> list[Tensor]:
        """One target pass over everything: per group the logits of its rows to decide, as the verifier wants them."""
        slots, counts, tokens, rows, share, ancestors = [], [], [], [], [], []
        for group in groups:
            drafted = iter(group.draft.tokens.tolist() if group.draft else [])
            before = len(rows)
            for b, (work, num_draft) in enumerate(zip(group.members, group.counts)):
                tokens += work.feed
                if work.complete:
                    rows.extend(range(len(tokens) - 1, len(tokens) + num_draft))
                tokens.extend(next(drafted) for _ in range(num_draft))
                slots.append(work.request.slot)
                counts.append(len(work.feed) + num_draft)
                ancestors.append(group.draft.ancestors(b, len(work.feed)) if isinstance(group.draft, Tree) else None)
            share.append(len(rows) - before)
        logits = self.target.forward(slots, counts, tokens, rows,
                                     ancestors if any(mask is not None for mask in ancestors) else None)
        self._synchronize()
        return list(logits.split(share))

    def _judge(self, group: _Group, logits: Tensor) -> list[_Outcome]:
        """Accept and reject the drafts of one group."""
        if group.draft is None:
            return [_Outcome([]) for _ in group.members]
        requests = [w.request for w in group.members]
        sampling = SamplingBatch.from_params([r.params for r in requests], logits.device)
        position = torch.tensor([r.length for r in requests], device=logits.device)
        trees: list[dict | None] = [None] * len(requests)
        if isinstance(group.draft, Tree):
            verdict = verify_tree(logits, group.draft, sampling, position)
            trees = group.draft.tell(verdict.path.tolist())
            self.target.keep([r.slot for r in requests], [r.length for r in requests], [t["path"] for t in trees])
        else:
            verdict = verify_chain(logits, group.draft, sampling, position, max_draft=max(group.counts))
        drafted = [t.tolist() for t in group.draft.tokens.split(group.counts)]
        outcomes = [_Outcome(*seat) for seat in zip(
            drafted, verdict.num_accepted.tolist(), [[t for t in row if t >= 0] for row in verdict.tokens.tolist()],
            verdict.failed.tolist())]
        for outcome, tree in zip(outcomes, trees):
            outcome.tree = tree
        if self.record_laws:
            for b, outcome in enumerate(outcomes):
                outcome.laws = self._laws(group.draft, logits, sampling, b)
        return outcomes

    def _record(self, done: _Verified, began: float, **place: int) -> list[Event]:
        """Commit the verdicts, write down what happened, let go of who has finished and of drafters that raised."""
        members = [(group, work.request) for group in done.groups for work in group.members]
        seats, outcomes, events = [], [], []
        try:
            for (group, request), outcome in zip(members, done.outcomes):
                if request.finished:        # cancelled under way: nobody waits for it any more
                    continue
                seats.append((group, request))
                outcomes.append(outcome)
                context = request.length
                emitted = self._commit(request, outcome)
                events.append(self.trace.add(
                    "step", request.id, step=self.steps, drafter=group.drafter, drafted=outcome.drafted,
                    accepted=outcome.accepted * (not outcome.failed), emitted=emitted, context=context,
                    batch=len(members), draft_seconds=group.seconds,
                    draft_began=group.began - self.trace.origin if group.draft else 0.0,
                    target_began=done.began - self.trace.origin, target_seconds=done.target_seconds,
                    verify_seconds=done.verify_seconds, laws=outcome.laws, tree=outcome.tree, **place))
            selecting = self._observe(done.groups, seats, events, outcomes)
        finally:                            # whatever went wrong, who has finished holds nothing any more
            for _, request in members:
                if request.finish_reason and not (self.pipeline and self.pipeline.under_way(request)):
                    self._leave(request)
        seconds = time.perf_counter() - began
        for event in events:
            event.step_seconds, event.select_seconds = seconds, selecting
        self.steps += 1
        for group in done.groups:           # last: where warnings are errors it raises
            if group.error:
                self.retire(group.drafter, group.error)
        return events

    def _commit(self, request: Request, outcome: _Outcome) -> list[int]:
        """Append the verdict's tokens up to the first stop; roll every cache back to what is committed."""
        if outcome.failed:
            self._finish(request, FinishReason.ERROR, f"the target's logits behind token {request.length - 1} hold NaN "
                                                      "or nothing finite")
            return []
        read = request.length + outcome.accepted        # the target has seen the drafts: keep the accepted ones
        emitted = []
        for token in outcome.tokens:
            request.output_ids.append(token)
            emitted.append(token)
            try:
                reason = self._stop_reason(request)
            except Exception:               # its text cannot be decoded: its neighbours' can
                reason = FinishReason.ERROR
            if reason:
                self._finish(request, reason)
                break
        if outcome.tokens and not request.finished:
            self._roll_back(request, read)
        return emitted

    def _roll_back(self, request: Request, length: int) -> None:
        """Let the caches of the target and of the request's drafter hold no more than ``length`` tokens of it."""
        self.target.cache.truncate(request.slot, length)
        if drafter := self.drafters.get(request.drafter):       # one that was retired, or never was, holds nothing
            drafter.rollback(request.slot, length)

    def _observe(self, groups: list[_Group], seats: list[tuple[_Group, Request]], events: list[Event],
                 outcomes: list[_Outcome]) -> float:
        """Tell the selector how the step went; the seconds it took since the last step was told."""
        if not self.selection:
            return 0.0
        rows = sum(len(w.feed) + count for group in groups for w, count in zip(group.members, group.counts))
        self.selection.observe([(request, event, outcome.failed or group.error is not None)
                                for (group, request), event, outcome in zip(seats, events, outcomes)
                                if group.draft is not None], rows)
        seconds, self.selection.seconds = self.selection.seconds, 0.0
        return seconds

    # ---- the pool

    def drafter_called(self, name: str) -> Drafter:
        """The drafter of that name, built at its first use; one that drafts nothing if it was retired."""
        if not isinstance(name, str):
            raise ValueError(f"a drafter is asked for by its name, not by {name!r}")
        if name in self.retired:
            return self.drafters["none"]
        if name not in self.drafters:
            self.drafters[name] = pool.build(name, self.family, self.max_batch, self.max_len, self.target)
        return self.drafters[name]

    def retire(self, name: str, error: Exception) -> None:
        """Never again let that drafter draft: it raised ``error``."""
        if name in self.retired:
            return
        self.retired[name] = error
        self.drafters.pop(name, None)
        if self.selection:
            self.selection.retire(name)
        # last: where warnings are errors it raises
        warnings.warn(f"drafter {name!r} raised {type(error).__name__}: {error}; its requests go on without drafts",
                      RuntimeWarning, stacklevel=2)

    def _selection(self, selector, arms, gamma: int | None, capacities, fast_switching: bool) -> Selection | None:
        """The room that serves the selector, with every drafter built that it may choose."""
        if arms is not None and (self.drafter is not None or isinstance(selector, Selector)):
            raise ValueError("Engine: arms are for a policy's name: a Selector has its own, and one drafter needs none")
        if self.drafter is not None:
            if capacities is not None:
                raise ValueError("Engine: capacities need a selector")
            return None
        if selector is None or isinstance(selector, str):
            arms = [*self.family.drafters, "ngram"] if arms is None else list(arms)
            selector, options = selector or "spin", {}
            if gamma is not None:
                _check_whole("Engine: with a selector, gamma", gamma, 1)
                options["gamma"] = gamma
            elif selector not in ("spin-full", "minions"):          # which choose lengths themselves
                options["gamma"] = {name: self._usual_length(name) for name in arms}
                if selector == "spin":
                    options["shorten"] = True
            selector = make(selector, arms, **options)
        for name in selector.arms:
            self.drafter_called(name)
        return Selection(self, selector, capacities, fast_switching)

    # ---- helpers

    def _usual_length(self, name: str) -> int:
        """How many tokens an arm drafts where nobody says: a tree all of its depth."""
        drafter = self.drafter_called(name)
        return drafter.gamma or (DEFAULT_GAMMA if drafter.quick else PASSES)

    def _num_draft(self, request: Request, drafter: Drafter) -> int:
        """How many tokens are worth drafting: the target adds one itself, and nobody may outrun a limit."""
        room = min(self.max_len - 1, drafter.max_context) - request.length
        return max(0, min(request.gamma, request.remaining - 1, room))

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str) or isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[0], dict):
            return self.family.encode(prompt)
        what = "a prompt is a string, a list of chat messages, or a list of token ids"
        if isinstance(prompt, (bytes, Mapping, Set)):       # one could count them out, but nobody means that
            raise ValueError(f"{what}: got {type(prompt).__name__}")
        try:
            return [operator.index(i) for i in prompt]      # integers of any kind, but no fractions
        except TypeError as error:
            raise ValueError(f"{what}: {error}") from error

    def _check(self, request: Request) -> None:
        """Raise ValueError for a prompt that can't be served."""
        prompt = request.prompt_ids
        if not prompt:
            raise ValueError("the prompt is empty: there is nothing to condition the first token on")
        if wrong := [i for i in prompt if not 0 <= i < self.family.vocab_size]:
            raise ValueError(f"the prompt holds token id {wrong[0]}, outside the vocabulary of "
                             f"{self.family.vocab_size}")
        if len(prompt) >= self.max_len:
            raise ValueError(f"the prompt has {len(prompt)} tokens; max_len {self.max_len} must leave room for at "
                             f"least one more (the model's context is {self.family.max_context})")
        if self._reserved(request) > self.kv_tokens:
            raise ValueError(f"the request may come to hold {self._reserved(request)} tokens, more than kv_tokens = "
                             f"{self.kv_tokens}")

    def _reserved(self, request: Request) -> int:
        """Tokens of KV memory that a request may come to need."""
        return min(len(request.prompt_ids) + request.params.max_new_tokens, self.max_len)

    def _submit_all(self, requests: list[Request], prompts, params, submit) -> None:
        """Append each prompt's request to ``requests``; where one raises, the caller knows who was queued before."""
        if isinstance(prompts, str):
            raise TypeError(f"prompts must be a list, such as [{prompts[:20]!r}]")
        if params is None or isinstance(params, SamplingParams):
            params = [params] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts but {len(params)} sampling parameters")
        for prompt, own in zip(prompts, params):
            requests.append(self.submit(prompt, own, **submit))

    def _text(self, request: Request) -> tuple[str, bool]:
        """The decoded output up to the first stop string, and whether there is one."""
        text = self.family.decode(request.output_ids)
        found = [at for at in map(text.find, request.params.stop) if at >= 0]
        return text[:min(found, default=len(text))], bool(found)

    def _stop_reason(self, request: Request) -> FinishReason | None:
        """Does the token just committed end the request?"""
        if request.output_ids[-1] in request.stop_ids or request.params.stop and self._text(request)[1]:
            return FinishReason.STOP
        if request.remaining <= 0 or request.length >= self.max_len:
            return FinishReason.LENGTH
        return None

    def _finish(self, request: Request, reason: FinishReason, error: str | None = None) -> None:
        """Decide how a request ends. It holds its slot until it leaves, so that its last step is told before."""
        request.finish_reason, request.error = reason, error
        try:
            request.text = self._text(request)[0]
        except Exception as fault:
            request.finish_reason = FinishReason.ERROR
            request.error = error or f"its text cannot be decoded: {type(fault).__name__}: {fault}"

    def _end(self, requests: list[Request]) -> None:
        """Nobody waits for these any more: end them, and let go of what they hold."""
        for request in requests:
            self.cancel(request)
        if self.pipeline and any(self.pipeline.under_way(request) for request in requests):
            self.pipeline.drain()

    def _leave(self, request: Request) -> None:
        """Write down the end of a finished request and give back what it held."""
        if self.selection and request.slot is not None:
            self.selection.release(request)
        self.trace.add("finish", request.id, reason=request.finish_reason.value)
        if request.slot is None:
            if request in self.queue:
                self.queue.remove(request)
            return
        self.running.remove(request)
        self.target.cache.truncate(request.slot, 0)
        for drafter in list(self.drafters.values()):        # a stage beside us may be building one
            drafter.rollback(request.slot, 0)
        self.free_slots.append(request.slot)
        request.slot = None

    def _laws(self, draft: Draft, logits: Tensor, sampling: SamplingBatch, b: int) -> dict[str, Tensor]:
        """p ``[g + 1, V]`` and q ``[g, V]`` at the positions that request b drafted, both over the target's ids."""
        first, last = int(draft.cu[b]), int(draft.cu[b + 1])
        rows = torch.full((last - first + 1,), b, device=logits.device)
        p = probabilities(logits[first + b:last + b + 1], sampling.rows(rows))
        q = p.new_zeros(last - first, p.shape[1])
        for i, n in enumerate(range(first, last)):
            if draft.prob_row[n] < 0:
                q[i, draft.tokens[n]] = 1
            else:
                law = draft.probs[draft.prob_row[n]].to(q)
                q[i] = law if draft.ids is None else q[i].index_copy(0, draft.ids, law)
        return {"p": p, "q": q}

    def _synchronize(self) -> None:
        """Let the device finish, so that a phase's seconds are its own."""
        if self.target.device.type == "cuda":
            # this stream alone: drafters may be reading in others
            torch.cuda.current_stream(self.target.device).synchronize()


def _check_whole(name: str, value: int, least: int) -> None:
    """Raise ValueError unless ``value`` is an integer and at least ``least``."""
    if not isinstance(value, Integral):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
