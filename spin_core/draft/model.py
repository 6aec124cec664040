"""Drafting with a small language model."""

import itertools

import torch
from torch import Tensor

from spin_core.draft.base import CaughtUp, Draft, Drafter, Stopped, never_stopped
from spin_core.draft.build import BuildContext
from spin_core.kv.ring import AHEAD, Window
from spin_core.randomness import DRAFT, exponential_race
from spin_core.request import Request
from spin_core.runtime import ModelRunner
from spin_core.sampling import SamplingBatch, probabilities

CHUNK = 256     # tokens per pass of a catch-up: long prompts do not keep other requests waiting


class ModelDrafter(Drafter):
    """Drafts token by token with a causal LM over its own KV cache, for a whole ragged batch at once
    (:func:`spin_core.draft.reference.draft`: the same for one request, in ten lines).

    ``source`` is a :class:`spin_core.zoo.DraftModel`: the model, and the target ids its logits stand for. Sampling
    requests draw from q under their own temperature and filters, and hand exactly that q to the verifier; greedy
    requests propose the argmax, which is one-hot. ``window``: what its attention sees and its cache holds (None: as it
    was trained); it then drafts at most ``AHEAD`` tokens. ``check``, ``bf16``: see :class:`ModelRunner`. ``first``: how
    many tokens at the start of each text it never reads; entry i of its cache is token ``first + i``.
    """

    first = 0

    def __init__(self, source, slots: int, max_len: int, vocab_size: int | None = None,
                 keep_states: bool = False, window: Window | None = None, check: bool = True,
                 bf16: bool = False) -> None:
        self.name, self.ids = source.name, source.ids
        self.max_context = min(max_len, source.max_context)
        size = vocab_size if source.ids is None else len(source.ids)
        self.runner = ModelRunner(source.model, slots, self.max_context, size, keep_states, check=check, chunk=CHUNK,
                                  window=window or _trained_window(source.model), bf16=bf16)

    def propose(self, requests: list[Request], counts: list[int]) -> Draft:
        if self.runner.window:
            counts = [min(count, AHEAD) for count in counts]
        alive = [b for b, count in enumerate(counts) if count > 0 and self.drafts_for(requests[b])]
        if not alive:
            return Draft.empty(len(requests), self.runner.device)
        owners, tokens, qs, rows = [], [], [], []       # of every drafted token, step by step: see _pack
        logits = self._read(requests, alive)
        for step in range(max(counts)):
            sane, logits = finite_rows(logits)
            alive = [alive[i] for i in sane]
            if not alive:
                break
            columns, q = self._draw([requests[b] for b in alive], logits, step)
            drawn = columns if self.ids is None else self.ids[columns]
            first = sum(map(len, qs))
            rows += [-1 if requests[b].params.greedy else first + i for i, b in enumerate(alive)]
            owners += alive
            tokens.append(drawn)
            qs += [] if q is None else [q]
            keep = [i for i, b in enumerate(alive) if counts[b] > step + 1]
            alive = [alive[i] for i in keep]
            if not alive:
                break
            slots, ones = [requests[b].slot for b in alive], [1] * len(alive)
            logits = self.runner.forward(slots, ones, drawn[keep], list(range(len(alive))),
                                         **self._extra_inputs(slots, ones))
        return self._pack(len(requests), owners, tokens, qs, rows)

    def held(self, slot: int) -> int:
        """How many tokens of the text in ``slot`` lie before those it reads next."""
        return self.first + self.runner.cache.lengths[slot]

    def rollback(self, slot: int, length: int) -> None:
        self.runner.cache.truncate(slot, max(0, length - self.first))

    def missing(self, request: Request) -> int:
        if request.length > self.max_context:
            return 0                        # it cannot read this text any more, and will not draft
        return max(0, request.length - 1 - self.held(request.slot))

    def catch_up(self, requests: list[Request], stopped: Stopped = never_stopped) -> list[CaughtUp]:
        """One pass over the missing text of all requests together, or one for every CHUNK tokens of it.

        The last token stays unread: a draft needs its logits, and reads it.
        """
        out = [CaughtUp(0, max(len(r.prompt_ids), self.held(r.slot) + 1)) for r in requests]
        while not stopped():
            slots, counts, tokens, rows, wanted, readers = [], [], [], [], [], []
            for request, found in zip(requests, out):
                count = min(self.missing(request), CHUNK - len(tokens))
                if count <= 0:
                    continue
                start = self.held(request.slot)
                ahead = request.tail(start)[:count + 1]     # behind token i stands token i + 1
                scored = range(max(start, len(request.prompt_ids) - 1), start + count)
                rows += [len(tokens) + i - start for i in scored]
                wanted += [ahead[i + 1 - start] for i in scored]
                readers.append((found, count, len(scored)))
                slots.append(request.slot)
                counts.append(count)
                tokens += ahead[:-1]
            if not slots:
                break
            # no CUDA graph: a draft for other slots may run in another thread, and a graph has one set of inputs
            logits = self.runner.forward(slots, counts, tokens, rows, graphs=False, **self._extra_inputs(slots, counts))
            peak, best = logits.max(-1)
            right = (best if self.ids is None else self.ids[best]) == torch.tensor(wanted, device=logits.device)
            hits = iter((right & peak.isfinite()).tolist())
            for found, count, scored in readers:
                found.tokens += count
                found.hits += [next(hits) for _ in range(scored)]
        return out

    def _read(self, requests: list[Request], alive: list[int]) -> Tensor:
        """Read what is missing of each committed sequence, in one pass; logits behind its last token ``[A, Vd]``."""
        slots = [requests[b].slot for b in alive]
        for b, slot in zip(alive, slots):
            self.rollback(slot, requests[b].length - 1)    # the last token's logits are needed anew
        missing = [requests[b].tail(self.held(s)) for b, s in zip(alive, slots)]
        counts = [len(m) for m in missing]
        last = [total - 1 for total in itertools.accumulate(counts)]
        return self.runner.forward(slots, counts, list(itertools.chain(*missing)), last,
                                   **self._extra_inputs(slots, counts))

    def _extra_inputs(self, slots: list[int], counts: list[int]) -> dict[str, Tensor]:
        """What the model reads besides the next ``counts[b]`` tokens of each slot: nothing."""
        return {}

    def _extra_node_inputs(self, slots: list[int], parents: list[list[int]]) -> dict[str, Tensor]:
        """The same for nodes of a tree, whose parents are in the cache entries ``parents[b]``."""
        return {}

    def drafts_for(self, request: Request) -> bool:
        """Whether it can draft for that request now."""
        return True

    def _draw(self, requests: list[Request], logits: Tensor, step: int) -> tuple[Tensor, Tensor | None]:
        """One token per row: columns of the draft vocabulary ``[A]``, and q ``[A, Vd]`` if any row samples."""
        if all(r.params.greedy for r in requests):
            return logits.argmax(-1), None
        sampling = SamplingBatch.from_params([r.params for r in requests], logits.device)
        q = probabilities(logits, sampling)
        committed = torch.tensor([r.length for r in requests], device=logits.device)
        # `base` = the committed length: a position drafted again after a rejection gets fresh noise
        return exponential_race(q, sampling.seed, committed + step, DRAFT, committed), q

    def _pack(self, batch: int, owners: list[int], tokens: list[Tensor], qs: list[Tensor], rows: list[int]) -> Draft:
        """One flattened draft, request by request. Of N tokens, in the order of their steps: ``owners [N]``, the place
        of the request in the batch; ``tokens`` and ``qs``, concatenated; ``rows [N]`` of these, -1 for one-hot."""
        if not owners:
            return Draft.empty(batch, self.runner.device)
        order = sorted(range(len(owners)), key=owners.__getitem__)
        counts = torch.tensor([0] + [owners.count(b) for b in range(batch)], device=self.runner.device)
        return Draft(torch.cat(tokens)[order], counts.cumsum(0), torch.cat(qs) if qs else None,
                     torch.tensor([rows[i] for i in order], device=self.runner.device), self.ids)


def finite_rows(logits: Tensor) -> tuple[list[int], Tensor]:
    """Which rows of ``logits [A, V]`` have a largest one, and these rows. A drafter that stops making sense (NaN) just
    drafts less: the target decides, not the drafter."""
    sane = torch.isfinite(logits.amax(-1)).tolist()
    kept = [row for row, ok in enumerate(sane) if ok]
    return kept, logits if all(sane) else logits[kept]


def _trained_window(model) -> Window | None:
    """The window that a drafter's file names (:mod:`spin_core.zoo.pruned`)."""
    latest = getattr(model.config, "window", None)
    return None if latest is None else Window(latest)


def from_name(name: str, context: BuildContext) -> Drafter | None:
    """The drafter of the model ``name`` of the family, else None; tables and fed models were asked before."""
    source = context.family.drafters.get(name)
    return ModelDrafter(source, *context.size, check=context.check, bf16=context.bf16) if source is not None else None
