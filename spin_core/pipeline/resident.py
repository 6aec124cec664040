"""A step whose numbers stay on the device: draft, verify, commit, and not one question from the host.

Who asks a device for a number waits until it has done everything before. Here nobody asks: how many tokens a request
has, which they are, how many its next draft may hold, and what was accepted of it are tensors that one step writes and
the next one reads. Shapes cannot depend on them, so every request is drafted and verified as if it had the longest
draft, and what is too much goes to the end of the batch, behind ``cu[-1]``, where the verifier does not look.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spin_core.draft import Draft, Drafter, FedDrafter, ModelDrafter, NullDrafter
from spin_core.pipeline.graphs import Graphs
from spin_core.randomness import DRAFT, race
from spin_core.request import Request
from spin_core.runtime import SlotCache
from spin_core.runtime.transfer import Mark, upload
from spin_core.sampling import SamplingBatch
from spin_core.verify import Progress, verify_chain


def can_draft(drafter: Drafter, device: torch.device) -> bool:
    """Can it draft for a text that the host has not seen? Lookup cannot: it searches in tokens on the host. Nor can a
    sparse cache: where an entry sits in it is reckoned on the host."""
    return type(drafter) is NullDrafter or type(drafter) in (ModelDrafter, FedDrafter) and \
        type(drafter.runner.cache) is SlotCache and drafter.runner.device == device


def window(drafter: Drafter, gamma: int) -> int:
    """How many of the last tokens of a text a drafter reads anew before it drafts ``gamma``.

    As many as it may be missing or hold wrongly: behind a draft that was accepted whole, its last token and the
    target's. A fed drafter has read the whole draft on states of its own, and reads it again on the target's.
    """
    return gamma + 1 if type(drafter) is FedDrafter else 2


def longest_draft(requests: list[Request], limits: list[int]) -> int:
    """How many tokens the longest draft of these requests may have. ``limits``: see :class:`Seats`."""
    return max(0, *(min(r.gamma, limit - r.length) for r, limit in zip(requests, limits)))


@dataclass
class Seats:
    """B requests as the device knows them; tensors are int64 but for ``sampling``.

    ``recent [B, W]``, the last tokens of each text, W the drafter's window; ``gamma [B]``; ``last [B]``, how many
    tokens a text may have and still want one more drafted (beyond it nothing drafted could be kept). ``progress``
    holds the texts' lengths, and in ``lengths[0]`` what the target's cache holds of them. ``longest`` is the largest
    gamma, and ``sampled`` and ``filtered`` say whether any request samples, or filters: the host knows these without
    asking.
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
    filtered: bool

    @staticmethod
    def of(requests: list[Request], target: Graphs, drafter: Drafter, graphs: Graphs | None, limits: list[int]
           ) -> "Seats":
        """Seat ``requests``, which have read all but the last token of their texts. ``limits``: see ``last``."""
        device, params = target.runner.device, [r.params for r in requests]

        def column(values: list) -> Tensor:
            return upload(values, torch.int64, device)

        longest = 0 if graphs is None else longest_draft(requests, limits)
        lengths, width = [r.length for r in requests], window(drafter, longest)
        progress = Progress(column(lengths), column([r.ids[-1] for r in requests]), column([r.slot for r in requests]),
                            column([target.runner.cache.lengths]))
        return Seats(target, drafter, graphs, progress, column([r.tail(n - width) for r, n in zip(requests, lengths)]),
                     column([min(r.gamma, longest) for r in requests]), column(limits),
                     SamplingBatch.from_params(params, device), longest, any(not p.greedy for p in params),
                     any(p.top_k or p.top_p < 1 or p.min_p for p in params))

    def rows(self, index: list[int]) -> "Seats":
        """The seats of some of the requests."""
        at, was = upload(index, torch.int64, self.recent.device), self.progress
        progress = Progress(was.position[at], was.last[at], was.slot[at], was.lengths)
        return Seats(self.target, self.drafter, self.graphs, progress, self.recent[at], self.gamma[at], self.last[at],
                     self.sampling.rows(at), self.longest, self.sampled, self.filtered)


@dataclass
class Drafted:
    """``tokens [B, gamma]``, of which ``counts [B]`` count; ``laws``, each token's q ``[B, Vd]`` if any samples."""

    tokens: Tensor
    counts: Tensor
    laws: list[Tensor]


@torch.inference_mode()
def draft(seats: Seats, most: int) -> Drafted:
    """What the drafter proposes behind texts of at most ``most`` tokens, as :meth:`ModelDrafter.propose` would."""
    position, slot = seats.progress.position, seats.progress.slot
    room = (seats.last - position).clamp(min=0).minimum(seats.gamma)
    if not seats.longest:
        return Drafted(room.new_zeros(len(room), 0), room, [])
    runner, (batch, width) = seats.drafter.runner, seats.recent.shape
    each = torch.arange(batch, device=slot.device)
    first = position - width
    read, entry, keep, states = seats.recent, first - seats.drafter.first, (each + 1) * width - 1, None
    if type(seats.drafter) is FedDrafter:
        before = first[:, None] - 1 + torch.arange(width, device=slot.device)
        states = runner.model.fed(seats.target.runner.states[slot[:, None], before][..., seats.drafter.columns])
    sane, counts, tokens, laws = torch.ones_like(slot, dtype=torch.bool), torch.zeros_like(slot), [], []
    for step in range(seats.longest):
        logits = seats.graphs.resident(read, slot, entry, most + seats.longest, keep, states)
        sane = sane & logits.amax(-1).isfinite()        # who stops making sense just drafts less
        counts += sane
        column = logits.argmax(-1)
        if seats.sampled:
            q = law(logits, seats.sampling, seats.filtered)
            drawn = race(q, seats.sampling.seed, position + step, DRAFT, position).clamp(min=0)
            column = column.where(seats.sampling.greedy, drawn)
            laws.append(q)
        tokens.append(column if seats.drafter.ids is None else seats.drafter.ids[column])
        read, entry, keep = tokens[-1][:, None], position + step - seats.drafter.first, each
        if states is not None:
            states = runner.states[slot, (entry - 1).clamp(max=seats.drafter.max_context - 1)][:, None]
    return Drafted(torch.stack(tokens, 1), counts.minimum(room), laws)


@torch.inference_mode()
def verify(seats: Seats, drafted: Drafted, most: int) -> tuple[Tensor, Mark]:
    """Let the target decide about texts of at most ``most`` tokens and bring ``seats`` up to date.

    Returns ``[B, 3 + gamma + gamma + 1]``: drafted, accepted, failed, the drafted tokens, the emitted ones; and the
    moment between the target's pass and the verdict.
    """
    state, (batch, gamma) = seats.progress, drafted.tokens.shape
    place = torch.arange(gamma + 1, device=state.slot.device)
    # all rows that somebody needs, request by request, before all that nobody needs
    rows = (place > drafted.counts[:, None]).flatten().to(torch.uint8).argsort(stable=True)
    read = torch.cat([state.last[:, None], drafted.tokens], 1)
    logits = seats.target.resident(read, state.slot, state.lengths[0][state.slot], most, rows)
    state.lengths[0].index_add_(0, state.slot, torch.full_like(state.slot, gamma + 1))
    judging = Mark(logits.device)
    verdict = verify_chain(logits, _flat(seats, drafted, place[:gamma]), seats.sampling, state.position, gamma, state)
    emitted = (verdict.num_accepted + 1) * ~verdict.failed
    seats.recent = torch.cat([seats.recent, verdict.tokens], 1).gather(
        1, emitted[:, None] + torch.arange(seats.recent.shape[1], device=place.device))
    return torch.cat([torch.stack([drafted.counts, verdict.num_accepted, verdict.failed], 1), drafted.tokens,
                      verdict.tokens], 1), judging


def _flat(seats: Seats, drafted: Drafted, place: Tensor) -> Draft:
    """Request by request, as the verifier wants it."""
    cu = torch.cat([torch.zeros_like(drafted.counts[:1]), drafted.counts.cumsum(0)])
    order = (place >= drafted.counts[:, None]).flatten().to(torch.uint8).argsort(stable=True)
    tokens = drafted.tokens.flatten()[order]
    if not drafted.laws:
        return Draft(tokens, cu)
    greedy = seats.sampling.greedy[order // len(place)]
    laws = torch.stack(drafted.laws, 1).flatten(0, 1)
    return Draft(tokens, cu, laws, order.masked_fill(greedy, -1), seats.drafter.ids)


def law(logits: Tensor, sampling: SamplingBatch, filtered: bool) -> Tensor:
    """:func:`spin_core.sampling.probabilities` of rows that sample, by one whole sort if any is ``filtered``.

    The other asks the device how much there is to sort. Greedy rows hold nothing of use.
    """
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    scores = scores / sampling.temperature.where(~sampling.greedy, 1.0).to(scores.dtype).unsqueeze(-1)
    if not filtered:
        return scores.softmax(-1)
    top, vocab = scores.sort(-1, descending=True).values, scores.shape[-1]
    k = torch.where(sampling.top_k > 0, sampling.top_k, vocab).clamp(max=vocab).unsqueeze(-1)
    floor = top.gather(-1, k - 1)
    mass = top.masked_fill(top < floor, -torch.inf).softmax(-1).to(torch.float64)
    count = (mass.cumsum(-1) - mass < sampling.top_p.unsqueeze(-1)).sum(-1, keepdim=True).clamp(min=1)
    floor = torch.maximum(floor, top.gather(-1, count - 1)).where(sampling.top_p.unsqueeze(-1) < 1, floor)
    floor = torch.maximum(floor, top[:, :1] + sampling.min_p.log().to(scores.dtype).unsqueeze(-1))
    return scores.masked_fill(scores < floor, -torch.inf).softmax(-1)
