"""A device-resident step: draft, verify, commit, and the host reads no number in between.

How many tokens a request has, which they are, how many its next draft may hold, and what was accepted of it are tensors
that one step writes and the next one reads. Shapes cannot depend on them, so every request is drafted and verified as
if it had the longest draft; what is too much goes to the end of the batch, where the verifier does not look.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spin_core.draft import Draft, Drafter, FedDrafter, ModelDrafter, NullDrafter
from spin_core.runtime.graphs import Graphs
from spin_core.randomness import DRAFT, exponential_race
from spin_core.request import Request
from spin_core.kv.transfer import Mark, upload
from spin_core.sampling import SamplingBatch, warp_
from spin_core.verify import Progress, verify_chain


FILTERS = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}      # of sampling, with the values that switch them off


def can_draft(drafter: Drafter, device: torch.device) -> bool:
    """Can it draft for a text that the host has not seen? Lookup cannot: it searches in tokens on the host. Nor can a
    model whose layers see less than all of the text or score it otherwise: :class:`Graphs` know plain layers only."""
    return type(drafter) is NullDrafter or type(drafter) in (ModelDrafter, FedDrafter) and drafter.runner.plain and \
        drafter.runner.device == device


def window(drafter: Drafter, gamma: int) -> int:
    """How many of the last tokens of a text a drafter reads anew before it drafts ``gamma``.

    As many as it may be missing or hold wrongly: behind a draft that was accepted whole, its last token and the
    target's. A fed drafter has read the whole draft on states of its own, and reads it again on the target's.
    """
    return gamma + 1 if type(drafter) is FedDrafter else 2


def longest_draft(requests: list[Request], limits: list[int]) -> int:
    """How many tokens the longest draft of these requests may have. ``limits``: see :class:`DeviceBatch`."""
    return max(0, *(min(r.gamma, limit - r.length) for r, limit in zip(requests, limits)))


@dataclass
class DeviceBatch:
    """B requests as the device knows them; tensors are int64 but for ``sampling``.

    ``recent [B, W]``, the last tokens of each text, W the drafter's window; ``gamma [B]``; ``last [B]``, how many
    tokens a text may have and still want one more drafted (beyond it nothing drafted could be kept). ``progress``
    holds the texts' lengths, and in ``lengths[0]`` what the target's cache holds of them. ``longest`` is the largest
    gamma, ``sampled`` says whether any request samples, and ``filters`` which filters are in use: the host knows these
    without asking.
    """

    target: Graphs
    drafter: Drafter
    graphs: Graphs | None       # of the drafter
    progress: Progress
    recent: Tensor
    gamma: Tensor
    last: Tensor
    sampling: SamplingBatch
    longest: int
    sampled: bool
    filters: list[str]

    @staticmethod
    def of(requests: list[Request], target: Graphs, drafter: Drafter, graphs: Graphs | None, limits: list[int]
           ) -> "DeviceBatch":
        """For ``requests`` of which all but the last token was read. ``limits``: see ``last``."""
        device, params = target.runner.device, [r.params for r in requests]

        def column(values: list) -> Tensor:
            return upload(values, torch.int64, device)

        longest = 0 if graphs is None else longest_draft(requests, limits)
        lengths, width = [r.length for r in requests], window(drafter, longest)
        progress = Progress(column(lengths), column([r.ids[-1] for r in requests]), column([r.slot for r in requests]),
                            column([target.runner.cache.lengths]))
        recent = column([r.tail(n - width) for r, n in zip(requests, lengths)])
        return DeviceBatch(target, drafter, graphs, progress, recent,
                     column([min(r.gamma, longest) for r in requests]), column(limits),
                     SamplingBatch.from_params(params, device), longest, any(not p.greedy for p in params),
                     [name for name, off in FILTERS.items() if any(getattr(p, name) != off for p in params)])

    def rows(self, index: list[int]) -> "DeviceBatch":
        """The same of some of the requests."""
        at, was = upload(index, torch.int64, self.recent.device), self.progress
        progress = Progress(was.position[at], was.last[at], was.slot[at], was.lengths)
        return replace(self, progress=progress, recent=self.recent[at], gamma=self.gamma[at], last=self.last[at],
                       sampling=self.sampling.rows(at))


@dataclass
class Drafted:
    """``tokens [B, gamma]``, of which ``counts [B]`` count; ``probs``, each token's q ``[B, Vd]`` if any samples."""

    tokens: Tensor
    counts: Tensor
    probs: list[Tensor]


@torch.inference_mode()
def draft(running: DeviceBatch, most: int) -> Drafted:
    """What the drafter proposes behind texts of at most ``most`` tokens, as :meth:`ModelDrafter.propose` would."""
    position, slot = running.progress.position, running.progress.slot
    room = (running.last - position).clamp(min=0).minimum(running.gamma)
    if not running.longest:
        return Drafted(room.new_zeros(len(room), 0), room, [])
    runner, (batch, width) = running.drafter.runner, running.recent.shape
    each = torch.arange(batch, device=slot.device)
    first = position - width
    read, entry, keep, states = running.recent, first - running.drafter.first, (each + 1) * width - 1, None
    if type(running.drafter) is FedDrafter:
        before = first[:, None] - 1 + torch.arange(width, device=slot.device)
        kept = running.target.runner.states[slot[:, None], before]
        states = runner.model.fed(kept[..., running.drafter.columns])
    sane, counts, tokens, probs = torch.ones_like(slot, dtype=torch.bool), torch.zeros_like(slot), [], []
    for step in range(running.longest):
        logits = running.graphs.resident(read, slot, entry, most + running.longest, keep, states)
        sane = sane & logits.amax(-1).isfinite()        # logits without a maximum (NaN): the request just drafts less
        counts += sane
        column = logits.argmax(-1)
        if running.sampled:
            q = probabilities(logits, running.sampling, running.filters)
            drawn = exponential_race(q, running.sampling.seed, position + step, DRAFT, position).clamp(min=0)
            column = column.where(running.sampling.greedy, drawn)
            probs.append(q)
        tokens.append(column if running.drafter.ids is None else running.drafter.ids[column])
        read, entry, keep = tokens[-1][:, None], position + step - running.drafter.first, each
        if states is not None:
            states = runner.states[slot, (entry - 1).clamp(max=running.drafter.max_context - 1)][:, None]
    return Drafted(torch.stack(tokens, 1), counts.minimum(room), probs)


@torch.inference_mode()
def verify(running: DeviceBatch, drafted: Drafted, most: int) -> tuple[Tensor, Mark]:
    """Let the target decide about texts of at most ``most`` tokens and bring ``running`` up to date.

    Returns ``[B, 3 + gamma + gamma + 1]``: drafted, accepted, failed, the drafted tokens, the emitted ones; and the
    moment between the target's pass and the verdict.
    """
    state, gamma = running.progress, drafted.tokens.shape[1]
    place = torch.arange(gamma + 1, device=state.slot.device)
    # all rows that are needed, request by request, before those that are not
    rows = (place > drafted.counts[:, None]).flatten().to(torch.uint8).argsort(stable=True)
    read = torch.cat([state.last[:, None], drafted.tokens], 1)
    logits = running.target.resident(read, state.slot, state.lengths[0][state.slot], most, rows)
    state.lengths[0].index_add_(0, state.slot, torch.full_like(state.slot, gamma + 1))
    verifying = Mark(logits.device)
    flat = _flat(running, drafted, place[:gamma])
    verdict = verify_chain(logits, flat, running.sampling, state.position, gamma, state)
    emitted = (verdict.num_accepted + 1) * ~verdict.failed
    running.recent = torch.cat([running.recent, verdict.tokens], 1).gather(
        1, emitted[:, None] + torch.arange(running.recent.shape[1], device=place.device))
    return torch.cat([torch.stack([drafted.counts, verdict.num_accepted, verdict.failed], 1), drafted.tokens,
                      verdict.tokens], 1), verifying


def _flat(running: DeviceBatch, drafted: Drafted, place: Tensor) -> Draft:
    """Request by request, as the verifier wants it."""
    cu = torch.cat([torch.zeros_like(drafted.counts[:1]), drafted.counts.cumsum(0)])
    order = (place >= drafted.counts[:, None]).flatten().to(torch.uint8).argsort(stable=True)
    tokens = drafted.tokens.flatten()[order]
    if not drafted.probs:
        return Draft(tokens, cu)
    greedy = running.sampling.greedy[order // len(place)]
    probs = torch.stack(drafted.probs, 1).flatten(0, 1)
    return Draft(tokens, cu, probs, order.masked_fill(greedy, -1), running.drafter.ids)


def probabilities(logits: Tensor, sampling: SamplingBatch, filters: Collection[str]) -> Tensor:
    """:func:`spin_core.sampling.probabilities` of the rows that sample, for a host that must not wait for the device.

    Greedy rows hold nothing of use. ``filters`` names those of "top_k", "top_p" and "min_p" that any row has."""
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    return warp_(scores, replace(sampling, temperature=sampling.temperature.where(~sampling.greedy, 1.0)), filters)
