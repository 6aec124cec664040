"""Lesson 6's exercises, and the checks of its kernels, rung by rung, against plain torch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spin_core.draft.base import Draft
from spin_core.lab.lessons.checking import Exercise, ask, check, wrong
from spin_core.randomness import ACCEPT, uniform
from spin_core.request import SamplingParams
from spin_core.sampling import SamplingBatch
from spin_core.verify import chain


def inputs(counts: list[int], vocab: int, seed: int = 0, device: str = "cpu") -> dict[str, Tensor]:
    """A ragged batch of sampled drafts: what the rungs take, by name. ``counts`` may hold zeros."""
    generator = torch.Generator().manual_seed(seed)
    drafted, batch = sum(counts), len(counts)
    cu = torch.tensor([0, *counts]).cumsum(0)
    logits = 2 * torch.randn(drafted + batch, vocab, generator=generator)
    rows = torch.arange(drafted) + torch.arange(batch).repeat_interleave(cu.diff())
    q = (logits[rows] + torch.randn(drafted, vocab, generator=generator)).softmax(-1)
    tokens = q.multinomial(1, generator=generator).squeeze(-1) if drafted else torch.zeros(0, dtype=torch.int64)
    made = dict(logits=logits, tokens=tokens, cu=cu, q=q, seed=torch.arange(batch) + 100 * seed,
                position=torch.arange(batch) + 20)
    return {name: x.to(device) for name, x in made.items()}


def reference(x: dict[str, Tensor]) -> chain.Verdict:
    """spin_core's own verdict on :func:`inputs`. Its draws are the rungs' as long as V <= 64: one group of columns."""
    sampling = SamplingBatch.from_params([SamplingParams(temperature=1.0, seed=int(s)) for s in x["seed"]])
    x = {name: tensor.cpu() for name, tensor in x.items()}
    return chain.verify_chain(x["logits"], Draft(x["tokens"], x["cu"], x["q"], torch.arange(len(x["q"]))), sampling,
                              x["position"])


def tensor(value: Any, *shape: int, what: str = "What your kernel returns") -> Tensor:
    """``value`` on the CPU. The check ends here if it is no tensor of this shape."""
    if not isinstance(value, Tensor):
        wrong(f"{what} should be a tensor of shape {shape}; its type is {type(value).__name__}.")
    if value.shape != shape:
        wrong(f"{what} should be a tensor of shape {shape}; its shape is {tuple(value.shape)}.")
    return value.cpu()


@check
def check_logsumexp(rung: Callable, device: str = "cpu") -> str:
    """Rung 1: ``rung(logits [N, V]) -> [N]``."""
    plain = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    rising = torch.linspace(-50, 50, 300).expand(2, -1).contiguous()
    for name, logits in (("random logits", plain), ("logits that rise along the row", rising),
                         ("logits of 100 and more", plain + 100), ("a row of 7", plain[:, :7].contiguous())):
        got = tensor(ask(rung, logits.to(device), called="Your kernel"), len(logits)).float()
        want = logits.logsumexp(-1)
        if not torch.allclose(got, want, atol=1e-4):
            row = int((got - want).abs().nan_to_num(torch.inf).argmax())
            wrong(f"For {name} row {row} gives {float(got[row]):.4f}, not {float(want[row]):.4f}.")
    return "One reading, any size of logits: exp never sees anything above zero."


@check
def check_accept(rung: Callable, device: str = "cpu") -> str:
    """Rung 2."""
    x = inputs([1] * 50, 150, seed=1)
    rows = torch.arange(50) * 2
    logits = x["logits"][rows].contiguous()
    args = (logits, x["tokens"], x["q"], x["seed"], x["position"])
    got = tensor(ask(rung, *(a.to(device) for a in args), called="Your kernel"), 50)
    p = logits.softmax(-1)[torch.arange(50), x["tokens"]]
    want = uniform(x["seed"], x["position"], ACCEPT) * x["q"][torch.arange(50), x["tokens"]] < p
    differing = int((got != want).sum())
    if differing:
        wrong(f"{differing} of 50 tokens are decided otherwise than by u q < p.")
    return f"{int(want.sum())} of 50 accepted, each as the reference does."


@check
def check_replace(rung: Callable, device: str = "cpu") -> str:
    """Rung 3: by the distribution of many draws, which knows nothing of how they are made."""
    n = 200           # an interpreter takes its time
    logits, q = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().repeat(n, 1), torch.tensor([0.1, 0.5, 0.1, 0.3]).repeat(n, 1)
    got = tensor(ask(rung, logits.to(device), q.to(device), torch.arange(n).to(device),
                     torch.full((n,), 7).to(device), called="Your kernel"), n)
    distribution, seen = torch.tensor([0.4, 0.0, 0.05, 0.0]) / 0.45, got.bincount(minlength=4) / n
    distance = float((seen - distribution).abs().sum() / 2)
    if distance > 0.1:
        wrong(f"Token shares {[round(float(s), 3) for s in seen]} are {distance:.3f} in total "
              f"variation from (p - q)+, {[round(float(w), 3) for w in distribution]}.")
    return f"{n} draws, {distance:.3f} in total variation from (p - q)+ normalised."


@check
def check_ragged(rung: Callable, device: str = "cpu") -> str:
    """Rung 4: and rows behind a rejection hold NaN, which must not matter."""
    x = inputs([4, 0, 2, 8, 1, 3], 60, seed=3, device=device)
    want = reference(x)
    request = torch.arange(6).repeat_interleave(x["cu"].cpu().diff() + 1)
    behind = torch.arange(len(request)) - x["cu"].cpu()[request] - request > want.num_accepted[request]
    x["logits"][behind.to(device)] = torch.nan
    got = ask(rung, *x.values(), called="Your kernel")
    if not isinstance(got, (tuple, list, Tensor)) or len(got) != 2:
        wrong(f"Your kernel should return two tensors, accepted and last; it returns a {type(got).__name__}.")
    accepted, last = (tensor(value, 6, what=name) for name, value in zip(("accepted", "last"), got))
    for b in range(6):
        text = want.tokens[b, want.num_accepted[b]]
        if (accepted[b], last[b]) != (want.num_accepted[b], text):
            wrong(f"Request {b}: accepted {int(accepted[b])} and token {int(last[b])}, the reference "
                  f"says {int(want.num_accepted[b])} and {int(text)}.")
    return (f"Six requests with 0 to 8 drafts; {int(behind.sum())} rows behind rejections hold NaN, "
            "and the verdicts do not depend on them.")


@check
def check_in_place(rung: Callable, device: str = "cpu") -> str:
    """Rung 5."""
    counts = [4, 0, 2, 8, 1, 3]
    x = inputs(counts, 60, seed=4, device=device)
    want, before = reference(x), x["position"].clone().cpu()
    text, lengths = (torch.full(shape, -9, dtype=torch.int64, device=device) for shape in ((6, 60), (6,)))
    ask(rung, *x.values(), text, lengths, max(counts), called="Your kernel", in_place=True)
    for b in range(6):
        new = want.tokens[b, :want.num_accepted[b] + 1].tolist()
        have = text[b, int(before[b]):int(before[b]) + len(new)].tolist()
        if have != new or int((text[b] != -9).sum()) != len(new):
            wrong(f"Request {b} should get the tokens {new} behind position {int(before[b])}; the "
                  f"text there is {have}.")
        if int(x["position"][b]) != int(before[b]) + len(new) or int(lengths[b]) != int(x["position"][b]) - 1:
            wrong(f"Request {b}: position {int(x['position'][b])}, cache length {int(lengths[b])}.")
    return "Texts, positions and cache lengths are where the next step needs them, on the device."


# ---- the exercises

def update(peak, total, x):
    new = max(peak, x.max())
    # the old sum was measured against the old peak; against the new one it is exp(peak - new) times as much
    return new, total * np.exp(peak - new) + np.exp(x - new).sum()


_rng = np.random.default_rng(0)
check_update = Exercise(
    update, "One reading, any size of logits: exp never sees anything above zero. Rung 1 is this loop on a device.",
    cases=[(0.5, 3.0, np.array([-1.0, 0.2])), (0.5, 3.0, np.array([2.0, 0.1, 2.0])),
           (-np.inf, 0.0, _rng.normal(size=5)), (990.0, 2.0, np.array([1000.0, 999.0])),
           (1000.0, 2.0, np.array([-1000.0]))],
    mistakes={
        "The old total was measured against the old peak: when the peak rises by d, it shrinks by exp(-d).":
            lambda peak, total, x: ((new := max(peak, x.max())), total + np.exp(x - new).sum()),
        "Measure the new logits against the new peak as well.":
            lambda peak, total, x: ((new := max(peak, x.max())), total * np.exp(peak - new) + np.exp(x - peak).sum()),
        "The peak is the largest logit of *all* blocks so far.":
            lambda peak, total, x: (x.max(), total * np.exp(peak - x.max()) + np.exp(x - x.max()).sum()),
        "That is exp of the logits themselves: it overflows at 710. Subtract the peak first.":
            lambda peak, total, x: (max(peak, x.max()), total + np.exp(x).sum()),
        "The sign of the correction is wrong: the total shrinks when the peak rises.":
            lambda peak, total, x: ((new := max(peak, x.max())), total * np.exp(new - peak) + np.exp(x - new).sum())})


def race(weights, noise):
    # log(weights) - log(noise) has its largest value there: Gumbel-max sampling
    with np.errstate(divide="ignore"):
        return int(np.argmin(noise / weights))


_noise = _rng.exponential(size=(6, 5))
check_race = Exercise(
    race, "No sum, no sort: a column of weight zero needs forever, and the others win in proportion to their weights.",
    cases=[(np.array(w, float), e) for w, e in zip(([1, 2, 3, 4, 5], [0, 0, .2, .1, 0], [9, 1, 1, 1, 1], [.01] * 5,
                                                    [0, 0, 0, .5, 0], [3, .1, 0, 5, .2]), _noise)],
    whole=True, low=0,
    mistakes={
        "That is the likeliest column: a draw must be random.": lambda w, e: int(np.argmax(w)),
        "A larger weight should make a column faster: divide the noise by it.": lambda w, e: int(np.argmin(e * w)),
        "The fastest column wins: the smallest time.":
            lambda w, e: int(np.argmax(np.where(w > 0, e / np.where(w > 0, w, 1), -1))),
        "The weights do not matter in yours.": lambda w, e: int(np.argmin(e)),
        "That is the time of the winner: return its column.": lambda w, e: np.min(e / w)})


def rows_read(drafted, accepted):
    return accepted + 1


check_rows_read = Exercise(
    rows_read, "The accepted ones and the one that decides: a rejection or the bonus. Never all of them.",
    cases=[(4, 0), (4, 2), (4, 4), (0, 0), (1, 1), (8, 5)], whole=True, low=0,
    mistakes={
        "Rows behind a rejection cannot change the verdict.": lambda drafted, accepted: drafted + 1,
        "One more row decides: that of the rejected token, or the bonus row.": lambda drafted, accepted: accepted,
        "If all are accepted, the bonus token comes from one row more.":
            lambda drafted, accepted: min(accepted + 1, drafted)})
