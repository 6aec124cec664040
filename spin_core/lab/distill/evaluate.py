"""How good is a drafter? Counted on the target's own text, without running the engine.

A greedy chain from any verified position is accepted as long as the drafter's argmax is the target's, and behind
accepted tokens the text is the target's text. So one pass over the text (one per depth for a fed drafter) tells the
outcome of every chain that could start anywhere, and tokens per verification at every gamma follow exactly.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spin_core.lab.distill.corpus import Shard
from spin_core.lab.distill.states import States
from spin_core.lab.distill.unroll import unroll
from spin_core.lab.simulate.recording import MAX_GAMMA, chains, verifications
from spin_core.zoo.fed import FedModel


@dataclass
class Scores:
    """One sequence's answer of n tokens: ``hits [depth][n]``, whether the drafter's argmax, ``depth`` tokens behind
    the verified text, is the target's; ``overlap [n]``, sum min(p, q) at the first depth. ``waits``: the drafter has
    nothing to say before the first token: it reads the states of a prompt that the target has not read yet."""

    hits: list[list[bool]]
    overlap: list[float]
    waits: bool = False


def chain(hits: list[list[bool]], gamma: int, waits: bool = False) -> list[tuple[int, int]]:
    """(drafted, accepted) of every verification of one answer, at most MAX_GAMMA tokens each.

    ``hits[d][t]``: token t is right when drafted as the (d + 1)-th of a chain; a drafter that does not care has one
    row.
    """
    proposed = [0 if waits and at == 0 else MAX_GAMMA for at in range(len(hits[0]))]
    return [(drafted, accepted) for _, drafted, accepted in verifications(proposed, chains(hits).tolist(), gamma)]


def tokens_per_verification(scores: list[Scores], gamma: int) -> float:
    """Emitted tokens over verifications, all sequences together."""
    return sum(len(s.overlap) for s in scores) / sum(len(chain(s.hits, gamma, s.waits)) for s in scores)


@torch.inference_mode()
def score(drafter: PreTrainedModel, ids: Tensor | None, target: PreTrainedModel, shard: Shard, states: States,
          batch: int = 16, depth: int = MAX_GAMMA) -> list[Scores]:
    """Scores of every sequence of the shard, in its order. ``states`` are the target's; ``depth``: how far a fed
    drafter is followed on its own states."""
    order = shard.lengths.argsort().tolist()            # texts of similar length together: less padding
    found = {}
    for first in range(0, len(order), batch):
        rows = order[first:first + batch]
        found.update(zip(rows, _score(drafter, ids, target, shard, states, rows, depth)))
    return [found[row] for row in range(len(order))]


def _score(drafter, ids, target, shard: Shard, states: States, rows: list[int], most: int) -> list[Scores]:
    fed, device = isinstance(drafter, FedModel), drafter.device
    spans = [(int(shard.starts[i]), int(shard.lengths[i]), int(shard.prompt_lengths[i])) for i in rows]
    width = max(length for _, length, _ in spans)
    tokens = torch.zeros(len(spans), width, dtype=torch.int64, device=device)
    head, given = target.get_output_embeddings().weight, states.read_by(drafter)
    hidden, read = (torch.zeros(len(spans), width, kept.shape[1], dtype=head.dtype, device=device)
                    for kept in (states.hidden, given))
    for b, (start, length, _) in enumerate(spans):
        tokens[b, :length] = shard.tokens[start:start + length].to(device)
        hidden[b, :length] = states.hidden[start:start + length].to(device)
        read[b, :length] = given[start:start + length].to(device)
    depths = unroll(drafter, tokens, read, most if fed else 1)
    out = []
    for b, (start, length, prompt) in enumerate(spans):
        said = slice(prompt - 1, length - 1)
        truth = tokens[b, prompt:length]
        hits = []
        for depth, body in enumerate(depths):
            logits = drafter.lm_head(body[b, said])
            best = logits.argmax(-1)
            hits.append((best if ids is None else ids[best]).eq(truth).tolist())
            if depth == 0:
                p = (hidden[b, said] @ (head if ids is None else head[ids]).T
                     - states.log_z[start + prompt - 1:start + length - 1, None].to(device)).exp()
                overlap = torch.minimum(p, logits.softmax(-1)).sum(-1).tolist()
        out.append(Scores(hits, overlap, fed and prompt > 1))
    return out
