"""One step of speculative decoding, top to bottom: plan -> choose -> draft -> verify -> commit.

A step serves some requests once. Its target pass is one flattened batch, in which some requests read a chunk of their
prompt and others have their drafts verified, each with a drafter, a length and sampling parameters of its own.

Every mode of the engine takes this step. Without a pipeline it runs at once, for all requests (:meth:`Step.run`).
Micro-batches launch it for a part of the batch on an executor that drafts and verifies in two threads, and land it
later. Asynchronous steps (``pipeline/asynchronous.py``) share :meth:`Step.commit`, but draft and verify on the device.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spin_core.draft import Draft, Drafter, Tree
from spin_core.draft.check import check_draft
from spin_core.draft.pool import DrafterPool
from spin_core.logits import adjust, distributions, log_probs
from spin_core.request import FinishReason, Request
from spin_core.runtime import ModelRunner
from spin_core.runtime.workers import Watch
from spin_core.sampling import SamplingBatch
from spin_core.scheduler import Scheduler
from spin_core.select.assigner import Assigner
from spin_core.trace import Event, Trace
from spin_core.verify import verify_chain, verify_tree

if TYPE_CHECKING:
    from spin_core.pipeline.executor import Executor, Flight


# ---- what stages hand to each other

@dataclass
class Work:
    """What the target reads of one request: committed tokens that it has not read yet."""

    request: Request
    input_ids: list[int]
    last_chunk: bool        # they reach the end of the committed text, so what follows it can be decided


@dataclass
class DraftGroup:
    """The requests of a step that share a drafter, and what it proposes. No draft: they are still in their prompts.

    ``tokens`` and ``counts`` are the draft's numbers on the host: its tokens request by request, and how many each has.
    """

    members: list[Work]
    draft: Draft | None
    drafter: str
    counts: list[int]
    tokens: list[int] = field(default_factory=list)
    began: float = 0.0
    seconds: float = 0.0
    error: Exception | None = None      # what the drafter raised, or what is wrong with its draft


@dataclass
class RequestOutcome:
    """What one request gets out of a step."""

    drafted: list[int]
    accepted: int = 0
    tokens: list[int] = field(default_factory=list)     # accepted tokens and one of the target's own
    failed: bool = False
    distributions: dict | None = None
    tree: dict | None = None        # see spin_core.trace.Event
    logprobs: list[float] = field(default_factory=list)     # of ``tokens``, where they are asked for


@dataclass
class Verified:
    """What a step knows after its target pass, nothing of it committed yet. Outcomes are in the groups' order."""

    groups: list[DraftGroup]
    outcomes: list[RequestOutcome]
    began: float
    target_seconds: float
    verify_seconds: float


@dataclass(eq=False)
class InFlight:
    """A step between its launch and its landing. ``watch`` knows which drafter it waits for."""

    requests: list[Request]
    flight: Flight          # ``result()`` waits for the :class:`Verified`; ``landed``: it is there
    began: float
    micro_batch: int = 0
    micro_batches: int = 1
    watch: Watch | None = None


class Step:
    """The five stages, in their order, and the parts of an engine that they use. In short, a step is

        work = plan(requests); choose(work); groups = draft(work); verified = verify(groups); events = commit(verified)

    :meth:`launch` plans, chooses, and has an executor draft and verify; :meth:`land` waits for that and commits.
    Between steps the target's cache holds all of a text but its last token, which is read together with the draft.
    """

    def __init__(self, target: ModelRunner, drafters: DrafterPool, scheduler: Scheduler, assigner: Assigner | None,
                 trace: Trace, inline: Executor, *, prefill_chunk: int = 512, record_probs: bool = False) -> None:
        self.target, self.drafters, self.scheduler, self.assigner = target, drafters, scheduler, assigner
        self.trace, self.inline, self.prefill_chunk, self.record_probs = trace, inline, prefill_chunk, record_probs

    def run(self, requests: list[Request]) -> list[Event]:
        """One step, from its plan to its commit; its events."""
        return self.land(self.launch(requests, self.inline))

    def launch(self, requests: list[Request], executor: Executor, others: Sequence[Request] = (),
               micro_batch: int = 0, micro_batches: int = 1) -> InFlight:
        """Plan, choose, and have the executor draft and verify. ``others``: the requests in other micro-batches."""
        began = time.perf_counter()
        work = self.plan(requests)
        self.choose(work, others)
        watch = Watch()
        flight = executor.launch(lambda: self.draft(work, watch), self.verify, micro_batch)
        step = InFlight([w.request for w in work], flight, began, micro_batch, micro_batches, watch)
        self.scheduler.in_flight.append(step)
        return step

    def land(self, step: InFlight) -> list[Event]:
        """Wait for what the target accepts, and commit it; the events."""
        return self.commit(self.wait(step), step)

    def plan(self, requests: list[Request]) -> list[Work]:
        """Which tokens the target reads: decoding requests their last one, prompts what is left of a shared budget."""
        work, budget = [], self.prefill_chunk
        for request in requests:
            # a step that failed behind the target's pass has left drafts in the cache; otherwise this does nothing
            self.target.cache.truncate(request.slot, request.length - 1)
            input_ids = unread = request.tail(self.target.cache.lengths[request.slot])
            if len(unread) > 1:
                input_ids = unread[:budget]
                budget -= len(input_ids)
            if input_ids:
                work.append(Work(request, input_ids, len(input_ids) == len(unread)))
        return work

    def choose(self, work: list[Work], others: Sequence[Request] = ()) -> None:
        """Let the selector choose drafter and gamma of the requests that decode."""
        if self.assigner:
            in_flight = [r for step in self.scheduler.in_flight for r in step.requests]
            self.assigner.assign([w.request for w in work if w.last_chunk], others, in_flight)

    def draft(self, work: list[Work], watch: Watch) -> list[DraftGroup]:
        """Have each drafter propose for its requests. Those of a drafter that fails go on without a draft."""
        watch.enter(None)
        prefill = [w for w in work if not w.last_chunk]     # no draft; the trace calls their drafter "none"
        groups = [DraftGroup(prefill, None, "none", [0] * len(prefill))] if prefill else []
        by_name: dict[str, list[Work]] = {}
        for w in work:
            if w.last_chunk:
                by_name.setdefault(w.request.drafter, []).append(w)
        for name, members in by_name.items():       # drafters on other ranks draft beside each other
            self._begin(name, [w.request for w in members])
        return groups + [self._propose(name, members, watch) for name, members in by_name.items()]

    def verify(self, groups: list[DraftGroup]) -> Verified:
        """Let the target accept or reject. It may run in another thread than the owner's: it changes caches only."""
        start = time.perf_counter()
        logits = self._run_target(groups)
        verifying = time.perf_counter()
        outcomes = [outcome for group, rows in zip(groups, logits) for outcome in self._accept_reject(group, rows)]
        return Verified(groups, outcomes, start, verifying - start, time.perf_counter() - verifying)

    def commit(self, verified: Verified, step: InFlight) -> list[Event]:
        """Append the verdicts' tokens, record what happened, let go of finished requests and of failed drafters."""
        members = [(group, work.request) for group in verified.groups for work in group.members]
        served, events = [], []
        try:
            for (group, request), outcome in zip(members, verified.outcomes):
                with self.scheduler.lock:
                    if request.finished:            # cancelled while the step was under way
                        continue
                    context = request.length
                    emitted = self.commit_request(request, outcome)
                    events.append(self._record(group, request, outcome, verified, step, emitted, context, len(members)))
                    served.append((group, request, outcome))
            select_seconds = self._observe(verified.groups, served, events)
        finally:                                    # whatever went wrong, finished requests hold nothing any more
            self.scheduler.sweep()
        seconds = time.perf_counter() - step.began
        for event in events:
            event.step_seconds, event.select_seconds = seconds, select_seconds
        self.trace.steps += 1
        for group in verified.groups:               # last: where warnings are errors it raises
            if group.error:
                self.drafters.retire(group.drafter, group.error)
        return events

    # ---- what the stages call

    def wait(self, step: InFlight) -> Verified:
        """What the step's flight brings. Where a stage raised, the requests are as they were before."""
        try:
            verified = step.flight.result()
        except BaseException:
            if step.flight.landed:          # a stage raised it. After a timeout or an interrupt it is still under way
                self.undo(step)
            raise
        self.scheduler.in_flight.remove(step)
        return verified

    def undo(self, step: InFlight) -> None:
        """Take back what a step that failed may have read: caches hold no more than the committed text."""
        self.scheduler.in_flight.remove(step)
        for request in step.requests:
            self._roll_back(request, request.length - 1)
        self.scheduler.sweep()

    def num_draft_tokens(self, request: Request, drafter: Drafter) -> int:
        """How many tokens are worth drafting: the target adds one itself, and no limit may be passed."""
        room = min(self.scheduler.max_len - 1, drafter.max_context) - request.length
        return max(0, min(request.gamma, request.remaining - 1, room, self.target.longest_draft))

    def _begin(self, name: str, requests: list[Request]) -> None:
        with suppress(Exception):           # _propose meets it again, and deals with it
            drafter = self.drafters.get(name)
            drafter.begin(requests, [self.num_draft_tokens(r, drafter) for r in requests])

    def _propose(self, name: str, members: list[Work], watch: Watch) -> DraftGroup:
        """Have one drafter draft, and check what it proposes before anything of it reaches the device.

        SystemExit and KeyboardInterrupt pass through: a signal's handler may have raised them.
        """
        requests = [w.request for w in members]
        start, error = time.perf_counter(), None
        watch.enter(name)
        try:
            drafter = self.drafters.get(name)
            counts = [self.num_draft_tokens(r, drafter) for r in requests]
            draft = drafter.propose(requests, counts)
            left = [min(self.scheduler.max_len - r.length, self.target.longest_draft) for r in requests]
            tokens, counts = check_draft(draft, counts, left, self.scheduler.vocab_size)
            draft = draft.to(self.target.device)
        except Exception as failure:        # losing a drafter must cost speed, never a request
            draft, error = Draft.empty(len(requests), self.target.device), failure
            tokens, counts = [], [0] * len(requests)
        watch.enter(None)
        self._synchronize()
        return DraftGroup(members, draft, name, counts, tokens, start,
                          draft.seconds or time.perf_counter() - start, error)

    def _run_target(self, groups: list[DraftGroup]) -> list[Tensor]:
        """One target pass over everything: per group the logits of its rows to decide, as the verifier wants them."""
        slots, counts, tokens, rows, rows_of_group, ancestors = [], [], [], [], [], []
        for group in groups:
            drafted, before = iter(group.tokens), len(rows)
            ancestors += group.draft.ancestors([len(work.input_ids) for work in group.members]) \
                if isinstance(group.draft, Tree) else [None] * len(group.members)
            for work, num_draft in zip(group.members, group.counts):
                tokens += work.input_ids
                if work.last_chunk:
                    rows.extend(range(len(tokens) - 1, len(tokens) + num_draft))
                tokens.extend(next(drafted) for _ in range(num_draft))
                slots.append(work.request.slot)
                counts.append(len(work.input_ids) + num_draft)
            rows_of_group.append(len(rows) - before)
        logits = self.target.forward(slots, counts, tokens, rows,
                                     ancestors if any(mask is not None for mask in ancestors) else None)
        self._synchronize()
        return list(logits.split(rows_of_group))

    def _accept_reject(self, group: DraftGroup, logits: Tensor) -> list[RequestOutcome]:
        """Verify the drafts of one group."""
        if group.draft is None:
            return [RequestOutcome([]) for _ in group.members]
        requests = [w.request for w in group.members]
        sampling = SamplingBatch.from_params([r.params for r in requests], logits.device)
        raw, logits = logits, adjust(logits, group.draft, requests)
        position = torch.tensor([r.length for r in requests], device=logits.device)
        trees: list[dict | None] = [None] * len(requests)
        if isinstance(group.draft, Tree):
            verdict = verify_tree(logits, group.draft, sampling, position)
            trees = group.draft.to_trace(verdict.path.tolist())
            self.target.keep([r.slot for r in requests], [r.length for r in requests], [t["path"] for t in trees])
        else:
            verdict = verify_chain(logits, group.draft, sampling, position, max_draft=max(group.counts))
        drafted, outcomes = iter(group.tokens), []
        for b, (count, accepted, row, failed) in enumerate(zip(
                group.counts, verdict.num_accepted.tolist(), verdict.tokens.tolist(), verdict.failed.tolist())):
            outcomes.append(RequestOutcome([next(drafted) for _ in range(count)], accepted, [t for t in row if t >= 0],
                                           failed, tree=trees[b]))
            if requests[b].params.logprobs:
                path = trees[b]["path"] if trees[b] else range(accepted)
                outcomes[-1].logprobs = log_probs(raw[sum(group.counts[:b]) + b:], path, outcomes[-1].tokens)
            if self.record_probs:
                outcomes[-1].distributions = distributions(group.draft, logits, sampling, b)
        return outcomes

    def commit_request(self, request: Request, outcome: RequestOutcome) -> list[int]:
        """Append the verdict's tokens up to the first stop; roll every cache back to what is committed."""
        if outcome.failed:
            self.scheduler.finish(request, FinishReason.ERROR, "the target's logits behind token "
                                  f"{request.length - 1} hold NaN or nothing finite")
            return []
        read = request.length + outcome.accepted        # the target has seen the drafts: keep the accepted ones
        emitted = []
        for token in outcome.tokens:
            request.output_ids.append(token)
            emitted.append(token)
            if self.scheduler.finish_if_stopped(request):
                break
        request.logprobs += outcome.logprobs[:len(emitted)]
        if outcome.tokens and not request.finished:
            self._roll_back(request, read)
        return emitted

    def _roll_back(self, request: Request, length: int) -> None:
        """Let the caches of the target and of the request's drafter hold no more than ``length`` tokens of it."""
        self.target.cache.truncate(request.slot, length)
        self.drafters.rollback(request.slot, length, request.drafter)

    def _record(self, group: DraftGroup, request: Request, outcome: RequestOutcome, verified: Verified, step: InFlight,
                emitted: list[int], context: int, batch: int) -> Event:
        return self.trace.add(
            "step", request.id, step=self.trace.steps, drafter=group.drafter, drafted=outcome.drafted,
            accepted=outcome.accepted * (not outcome.failed), emitted=emitted, context=context, batch=batch,
            micro_batch=step.micro_batch, micro_batches=step.micro_batches, draft_seconds=group.seconds,
            draft_began=group.began - self.trace.origin if group.draft else 0.0,
            target_began=verified.began - self.trace.origin, target_seconds=verified.target_seconds,
            verify_seconds=verified.verify_seconds, distributions=outcome.distributions, tree=outcome.tree)

    def _observe(self, groups: list[DraftGroup], served: list[tuple], events: list[Event]) -> float:
        """Report the step to the selector; the seconds that it took since the last report."""
        if not self.assigner:
            return 0.0
        rows = sum(len(w.input_ids) + count for group in groups for w, count in zip(group.members, group.counts))
        steps = [(request, event, outcome.failed or group.error is not None)
                 for (group, request, outcome), event in zip(served, events) if group.draft is not None]
        self.assigner.observe(steps, rows)
        return self.assigner.take_seconds()

    def _synchronize(self) -> None:
        """Let the device finish, so that a phase's seconds are its own."""
        if self.target.device.type == "cuda":
            # this stream alone: drafters may be reading in others
            torch.cuda.current_stream(self.target.device).synchronize()
