"""Which requests run: a queue, a slot of the caches for each running request, and how requests end and leave.

A request is queued, admitted to a slot, finished, and leaves. Any thread may queue and finish requests; slots change
hands only in the thread that steps, and only when no step under way uses them: what a pass writes late must never
become the prefix of another request's text.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from spin_core.draft.pool import DrafterPool
from spin_core.request import FinishReason, Request
from spin_core.runtime import ModelRunner
from spin_core.select.assigner import Assigner
from spin_core.text import OutputText
from spin_core.trace import Trace

if TYPE_CHECKING:
    from spin_core.step import InFlight


class Scheduler:
    """At most ``max_batch`` requests run, each with room for ``max_len`` tokens, all together for ``kv_tokens``.

    ``in_flight`` holds the steps that have been launched and have not landed; ``lock`` guards what any thread may
    change: the queue, and how requests end.
    """

    def __init__(self, family, target: ModelRunner, drafters: DrafterPool, trace: Trace, *, max_batch: int,
                 max_len: int, kv_tokens: int) -> None:
        self.family, self.target, self.drafters, self.trace = family, target, drafters, trace
        self.vocab_size, self.max_len, self.kv_tokens = family.vocab_size, max_len, kv_tokens
        self.assigner: Assigner | None = None
        self.queue: deque[Request] = deque()
        self.running: list[Request] = []
        self.free_slots = list(range(max_batch))[::-1]
        self.in_flight: deque[InFlight] = deque()
        self.lock = threading.RLock()

    # ---- entering

    def check(self, request: Request) -> None:
        """Raise ValueError for a prompt that can't be served."""
        prompt = request.prompt_ids
        if not prompt:
            raise ValueError("the prompt is empty: there is nothing to condition the first token on")
        if wrong := [i for i in prompt if not 0 <= i < self.vocab_size]:
            raise ValueError(f"the prompt holds token id {wrong[0]}, outside the vocabulary of {self.vocab_size}")
        if len(prompt) >= self.max_len:
            raise ValueError(f"the prompt has {len(prompt)} tokens; max_len {self.max_len} must leave room for at "
                             f"least one more (the model's context is {self.family.max_context})")
        if self.reserved(request) > self.kv_tokens:
            raise ValueError(f"the request may come to hold {self.reserved(request)} tokens, more than kv_tokens = "
                             f"{self.kv_tokens}")

    def reserved(self, request: Request) -> int:
        """Tokens of KV memory that a request may come to need."""
        return min(len(request.prompt_ids) + request.params.max_new_tokens, self.max_len)

    def admit(self) -> None:
        """Move requests from the queue into free slots while memory allows, in the order of arrival."""
        self.sweep()
        with self.lock:
            while self.queue and self.free_slots:
                if sum(map(self.reserved, [*self.running, self.queue[0]])) > self.kv_tokens:
                    return
                slot = self.free_slots[-1]
                assert self.target.cache.lengths[slot] == 0, f"slot {slot} still holds another request's tokens"
                request = self.queue.popleft()
                request.slot = self.free_slots.pop()
                self.running.append(request)
                self.trace.add("admit", request.id)

    # ---- ending

    def finish_if_stopped(self, request: Request) -> bool:
        """End the request if the token just committed does; does it?"""
        reason = None
        try:
            if request.output_ids[-1] in request.stop_ids or request.params.stop and self._decoded(request).stopped:
                reason = FinishReason.STOP
            elif request.remaining <= 0 or request.length >= self.max_len:
                reason = FinishReason.LENGTH
        except Exception:                   # its text cannot be decoded: its neighbours' can
            reason = FinishReason.ERROR
        if reason:
            self.finish(request, reason)
        return reason is not None

    def finish(self, request: Request, reason: FinishReason, error: str | None = None) -> None:
        """Decide how a request ends. It holds its slot until it leaves, so that its last step is recorded before."""
        with self.lock:
            try:
                request.text = self._decoded(request).text
            except Exception as fault:
                reason = FinishReason.ERROR
                error = error or f"its text cannot be decoded: {type(fault).__name__}: {fault}"
            request.error = error
            request.finish_reason = reason      # last: other threads wait for it

    def end(self, request: Request, reason: FinishReason, error: str | None = None) -> None:
        """Finish a request, unless it has finished; one without a slot leaves at once."""
        with self.lock:
            if not request.finished:
                self.finish(request, reason, error)
                if request.slot is None:
                    self.leave(request)

    def end_all(self, error: str) -> None:
        """End every request because of ``error``: the target can serve none any more."""
        with self.lock:
            for request in (*self.queue, *self.running):
                self.end(request, FinishReason.ERROR, error)
        self.sweep()

    def is_in_flight(self, request: Request) -> bool:
        """Does a step under way use the request's slot?"""
        return any(request in step.requests for step in list(self.in_flight))

    def sweep(self) -> None:
        """Let the finished requests leave whose slots no step under way uses. For the thread that steps."""
        for request in [r for r in self.running if r.finished and not self.is_in_flight(r)]:
            self.leave(request)

    def leave(self, request: Request) -> None:
        """Record the end of a finished request and give back what it held."""
        slot = request.slot
        if slot is not None and self.assigner:
            self.assigner.release(request)
        with self.lock:
            self.trace.add("finish", request.id, reason=request.finish_reason.value)
            if slot is None:
                if request in self.queue:
                    self.queue.remove(request)
                return
            self.running.remove(request)
            self.target.cache.truncate(slot, 0)
            self.free_slots.append(slot)
            request.slot = None
        self.drafters.rollback(slot, 0)

    def _decoded(self, request: Request) -> OutputText:
        """The request's text so far."""
        if request.decoded is None:
            request.decoded = OutputText(self.family.decode, request.prompt_ids, request.params.stop)
        request.decoded.catch_up(request.output_ids)
        return request.decoded
