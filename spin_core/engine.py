"""The public API: submit, cancel, generate, stream, step, close.

An :class:`Engine` puts the parts together: the target's runner, the pool of drafters, the scheduler, the selector, the
step (:mod:`spin_core.step`), and the pipeline that decides when a step runs. Read ``step.py`` for what a step does.
"""

import itertools
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from numbers import Real

from spin_core.draft import Drafter, pool
from spin_core.logits import check_model, resolve, samples
from spin_core.pipeline.asynchronous import Asynchronous
from spin_core.pipeline.executor import LIMIT, MOST, Sequential
from spin_core.pipeline.grouping import check_policy
from spin_core.pipeline.micro_batches import MicroBatches
from spin_core.request import FinishReason, Request, SamplingParams, check_whole
from spin_core.runtime.ranks import RankLost
from spin_core.runtime.shared import target_runner
from spin_core.scheduler import Scheduler
from spin_core.select import Selector
from spin_core.select.assigner import DEFAULT_GAMMA, Assigner, make_selector
from spin_core.step import Step
from spin_core.text import encode, special_stops
from spin_core.trace import EVENTS, Event, Trace

Prompt = str | list[int] | list[dict]


class Engine:
    """Serves requests for one model family, losslessly; one that is spread by :mod:`spin_core.distributed` likewise.

    ``Engine(family)`` is SPIN: ``selector="spin", verification="auto", pipeline="auto"``. ``Engine(family, NAME)`` is
    classical speculation: one drafter for all, and drafting waits for verification unless ``pipeline`` is given.

    ``drafter`` names the drafter of every request that is submitted without one of its own: one of the family's,
    "ngram" (prompt lookup), "none" (plain decoding), or made of these, as :mod:`spin_core.draft.composite`, ``trees``,
    ``sparse`` and :mod:`spin_core.lab.rivals.vote` say. ``gamma``: drafted tokens per step, 4 by default; of a tree its
    depth, by default all.

    A ``selector`` (a policy's name, or a :class:`spin_core.select.Selector`) chooses anew in every step which drafter
    drafts for a request and how many tokens, except for requests submitted with a drafter of their own. For a policy's
    name the pool is ``arms``, by default all of the family's drafters and "ngram", and ``gamma`` holds for all of them;
    by default models draft 2 tokens and lookups 4, with "spin" fewer where that pays more. ``capacities`` bounds the
    requests a drafter serves at once. ``fast_switching``: a drafter reads the text of a request that moves to it in a
    second thread, beside the steps; False makes the steps wait for it.

    ``max_batch`` requests run at once, each with room for ``max_len`` tokens of prompt and output; ``kv_tokens`` bounds
    the tokens that the running requests may come to hold together (prompt + max_new_tokens each). Requests that do not
    fit wait in a queue, first come first served. ``prefill_chunk`` bounds the prompt tokens read per step.
    ``record_probs`` keeps p and q of every drafted position in the trace, for the lessons' widgets. ``verification``:
    how the target attends to a ragged batch: "padded", "grouped", "decomposed" (SPIN's pieces), "per-request", "flex"
    (today's kernel without padding), or "auto", the cheapest of the first four here. It changes speed, not text.

    ``pipeline`` drafts for one part of the batch while another is verified: "off", a number of micro-batches, or
    "auto", which finds the best number by trying. A step then serves one micro-batch, and others may be in flight when
    it returns; a request that is cancelled in flight gives back its slot when its step lands. ``grouping``: which
    requests share a micro-batch (:mod:`spin_core.pipeline.grouping`). ``stage_timeout``: seconds that drafting or
    verifying a micro-batch may take; a drafter that takes longer is retired, and its requests go on. "async" launches a
    step before the host has read the last verdict, where it needs nothing of it. It changes speed, not text.

    ``trace_limit`` bounds the events that the trace keeps; None keeps all. ``check``: compare models with the library's
    logits at load. ``bf16``: on a CPU, all models (True), none (False), or drafters where that is fast (None) multiply
    in bf16; a target that does decides near-ties in its own way.

    All methods may be called from any thread. One step runs at a time, for the requests of all callers; one from within
    a step raises RuntimeError. ``close()``, or leaving the ``with`` block, ends the requests and threads.

    Raises ValueError for unknown drafters and strategies, for a drafter beside a selector, and for impossible limits. A
    bad *request* never raises: it comes back finished with ``FinishReason.ERROR`` and says why, and the others go on.
    """

    def __init__(self, family, drafter: str | None = None, gamma: int | None = None, *, max_batch: int = 8,
                 max_len: int | None = None, kv_tokens: int | None = None, prefill_chunk: int = 512,
                 record_probs: bool = False, verification: str = "auto", selector: str | Selector | None = None,
                 arms: Sequence[str] | None = None, capacities: Mapping[str, int] | None = None,
                 fast_switching: bool = True, pipeline: str | int | None = None, grouping: str = "balanced",
                 stage_timeout: float = LIMIT, trace_limit: int | None = EVENTS, check: bool = True,
                 bf16: bool | None = None, record_laws: bool | None = None) -> None:
        if drafter is not None and selector is not None:
            raise ValueError("Engine: a selector chooses drafters, drafter names one: give one of them")
        if arms is not None and (drafter is not None or isinstance(selector, Selector)):
            raise ValueError("Engine: arms are for a policy's name: a Selector has its own, and one drafter needs none")
        if drafter is not None and capacities is not None:
            raise ValueError("Engine: capacities need a selector")
        if pipeline is None:
            pipeline = "auto" if drafter is None else "off"
        if pipeline == "ahead":
            warnings.warn('Engine: pipeline="ahead" is called "async" now', DeprecationWarning, stacklevel=2)
            pipeline = "async"
        if record_laws is not None:
            warnings.warn("Engine: record_laws is called record_probs now", DeprecationWarning, stacklevel=2)
            record_probs = record_laws
        check_policy(grouping)
        for name, value, least in (("gamma", gamma, 0), ("max_batch", max_batch, 1), ("max_len", max_len, 2),
                                   ("kv_tokens", kv_tokens, 2), ("prefill_chunk", prefill_chunk, 1),
                                   ("the family's max_context", family.max_context, 2)):
            if value is not None or name not in ("gamma", "max_len", "kv_tokens"):
                check_whole(f"Engine: {name}", value, least)
        if not isinstance(stage_timeout, Real) or not 0 < stage_timeout <= MOST:
            raise ValueError(f"Engine: stage_timeout must be a positive number of seconds, at most {MOST:g}, "
                             f"got {stage_timeout!r}")
        if bf16 is not None and type(bf16) is not bool:
            raise ValueError(f"Engine: bf16 is True, False or None, not {bf16!r}")
        check_model(family.target)
        self.family = family
        self.max_len = min(max_len or 2048, family.max_context)
        self.max_batch = max_batch
        self.kv_tokens = kv_tokens or max_batch * self.max_len
        self.drafter = drafter                                          # None: the selector chooses
        self.gamma = gamma                                              # None: as many as suits the drafter
        self.target = target_runner(family, max_batch, self.max_len, family.vocab_size, verification=verification,
                                    check=check, chunk=prefill_chunk, bf16=bf16,
                                    keep_states=pool.layers_read(family.drafters.values()))
        self.pool = pool.DrafterPool(family, max_batch, self.max_len, self.target)
        self.trace = Trace(trace_limit)
        self.scheduler = Scheduler(family, self.target, self.pool, self.trace, max_batch=max_batch,
                                   max_len=self.max_len, kv_tokens=self.kv_tokens)
        self.drafters, self.retired = self.pool.drafters, self.pool.retired     # by name; what those raised that failed
        self.queue, self.running = self.scheduler.queue, self.scheduler.running
        self.free_slots = self.scheduler.free_slots
        if drafter is not None:
            self.get_drafter(drafter)
        self.selection = self.scheduler.assigner = None if drafter is not None else Assigner(
            make_selector(selector, arms, gamma, family, self.pool), self.pool, self.trace, max_len=self.max_len,
            device=self.target.device, capacities=capacities, fast_switching=fast_switching)
        self.stages = Step(self.target, self.pool, self.scheduler, self.selection, self.trace, Sequential(),
                           prefill_chunk=prefill_chunk, record_probs=record_probs)
        self.pipeline = None if pipeline == "off" else Asynchronous(self.stages) if pipeline == "async" else \
            MicroBatches(self.stages, pipeline, grouping, max_batch=max_batch, limit=stage_timeout)
        self.closed = False
        self._seeds = itertools.count()             # of requests without one
        self._turn = threading.Lock()               # held by the thread that steps
        self._stepping: int | None = None           # that thread

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *error) -> None:
        self.close()

    # ---- requests

    def submit(self, prompt: Prompt, params: SamplingParams | None = None, *, drafter: str | None = None,
               gamma: int | None = None) -> Request:
        """Queue a prompt: text, chat messages, or token ids. Returns the request: its ``output_ids`` grow as it runs,
        its ``text`` is there once it has finished.

        Raises TypeError for ``params`` that are none, ValueError for an unknown drafter or an impossible gamma,
        RuntimeError on a closed engine.
        """
        if gamma is not None:
            check_whole("Engine.submit: gamma", gamma, 0)
        params = resolve(params, self.family.target, self._seeds)
        if self.selection and drafter is None:
            if gamma is not None:
                raise ValueError("Engine.submit: with a selector, gamma is for requests that name their drafter")
            request = Request([], params)
        else:
            name = drafter if drafter is not None else self.drafter
            suits = self.get_drafter(name).gamma or DEFAULT_GAMMA
            number = next(n for n in (gamma, self.gamma, suits) if n is not None)
            request = Request([], params, name, number, pinned=drafter is not None)
        scheduler, ends = self.scheduler, None
        try:
            request.prompt_ids = encode(self.family, prompt)
            scheduler.check(request)
            request.stop_ids = frozenset(self.family.stop_ids if params.stop_ids is None else params.stop_ids) | \
                special_stops(getattr(self.family, "tokenizer", None), params.stop)
            ends = (FinishReason.LENGTH,) if params.max_new_tokens == 0 else None
        except Exception as error:          # whatever is wrong with a prompt is a failure of its request alone
            ends = FinishReason.ERROR, str(error) or type(error).__name__
        with scheduler.lock:
            if self.closed:
                raise RuntimeError("Engine.submit: the engine is closed")
            self.trace.add("submit", request.id)
            if ends:
                scheduler.end(request, *ends)
            else:
                scheduler.queue.append(request)
        return request

    def cancel(self, request: Request) -> None:
        """End a request now; what it has emitted stays in it. A finished request stays as it is.

        Its slot is given back at once where no step runs, else by the step.
        """
        self.scheduler.end(request, FinishReason.CANCELLED)
        self._sweep()

    def cancel_all(self) -> None:
        """End all requests, and wait for those in flight to land."""
        with self.scheduler.lock:       # or one on its way from the queue into the batch would be in neither
            requests = [*self.running, *self.queue]
        self._end(requests)

    def generate(self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None,
                 **submit) -> list[Request]:
        """Run all ``prompts`` to their end; the requests in the order of the prompts, each with its ``n`` samples."""
        requests: list[Request] = []
        try:
            self._submit_all(requests, prompts, params, submit)
            while not all(r.finished for r in requests):
                with suppress(RankLost):            # each request that this ended says so
                    self.step()
        finally:                        # an interrupt leaves nothing behind that the next call would have to serve
            self._end(requests)
        return requests

    def stream(self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None,
               **submit) -> Iterator[Event]:
        """Run all ``prompts`` and yield the trace's events as they happen, those of other requests included."""
        requests: list[Request] = []
        events = self.trace.listen()
        try:
            self._submit_all(requests, prompts, params, submit)
            while True:
                done = all(r.finished and r.slot is None for r in requests)
                while events:
                    yield events.popleft()
                if done:
                    return
                with suppress(RankLost):
                    self.step()
        finally:                        # a consumer that stops listening does not want the rest
            self.trace.forget(events)
            self._end(requests)

    def step(self) -> list[Event]:
        """Serve the running requests once, or one micro-batch of them; the step's events. Without work an empty list.

        Raises what the target's pass raised. The requests are then as they were before, but RankLost ends them all.
        """
        if self.closed:
            raise RuntimeError("Engine.step: the engine is closed")
        with self._in_turn():
            try:
                if self.pipeline:
                    return self.pipeline.step()
                self.scheduler.admit()
                return self.stages.run(self.scheduler.running) if self.scheduler.running else []
            except RankLost as lost:
                self.scheduler.end_all(str(lost))
                raise

    def close(self) -> None:
        """End all requests and the engine's threads. It serves no more; a second call does nothing."""
        with self.scheduler.lock:       # behind this, nothing is queued any more
            self.closed = True
        self.cancel_all()
        self._sweep()

    # ---- what can be read

    def get_drafter(self, name: str) -> Drafter:
        """The drafter of that name, built at its first use; one that drafts nothing if it was retired."""
        return self.pool.get(name)

    @property
    def steps(self) -> int:
        """Steps that were committed."""
        return self.trace.steps

    # ---- helpers

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """One step at a time, whichever thread it is called from."""
        if self._is_within_step():
            raise RuntimeError("Engine.step was called from within a step: a step serves all requests already")
        try:
            with self._turn:
                self._stepping = threading.get_ident()
                try:
                    yield
                finally:
                    self._stepping = None
        finally:
            self._sweep()           # requests that were cancelled after the step looked for them

    def _is_within_step(self) -> bool:
        """Is the calling thread in the midst of a step, as the code of a drafter is?"""
        return self._stepping == threading.get_ident() or \
            isinstance(self.pipeline, MicroBatches) and self.pipeline.is_within_stage()

    def _sweep(self) -> None:
        """Let finished requests leave, and a closed engine's threads end, unless a step runs: it does that itself."""
        if (self.closed or any(r.finished for r in list(self.running))) and self._turn.acquire(blocking=False):
            try:
                self.scheduler.sweep()
                for part in (self.pipeline, self.selection) if self.closed else ():
                    if part:
                        part.close()
            finally:
                self._turn.release()

    def _end(self, requests: list[Request]) -> None:
        """End these requests, and let go of what they hold."""
        for request in requests:
            self.cancel(request)
        if self.pipeline and not self._is_within_step() and any(map(self.scheduler.is_in_flight, requests)):
            with self._in_turn():
                self.pipeline.drain()

    def _submit_all(self, requests: list[Request], prompts, params, submit) -> None:
        """Append each prompt's request to ``requests``; where one raises, the caller knows which were queued before."""
        if isinstance(prompts, str):
            raise TypeError(f"prompts must be a list, such as [{prompts[:20]!r}]")
        if params is None or isinstance(params, SamplingParams):
            params = [params] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts but {len(params)} sampling parameters")
        for prompt, own in zip(prompts, params):
            for sample in samples(own):
                requests.append(self.submit(prompt, sample, **submit))
