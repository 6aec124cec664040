"""Lossless in distribution: by exact enumeration of every draft and every verdict, and by chi-square of real draws.

A model here is a table: node 0 is the empty output, node ``s * V + 1 + v`` is node s followed by token v, and
every node has its own random logits, so p and q depend on the whole prefix and never agree. Each proof comes
with the mistakes it has to catch.
"""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from spin_core.draft.base import Draft
from spin_core.randomness import DRAFT, FINAL, philox, exponential_race, uniform
from spin_core.request import SamplingParams
from spin_core.sampling import SamplingBatch, probabilities
from spin_core.verify import chain

PARAMS = {
    "plain": SamplingParams(temperature=1.0),
    "cold": SamplingParams(temperature=0.6),
    "top_k": SamplingParams(temperature=1.0, top_k=2),
    "top_p": SamplingParams(temperature=1.3, top_p=0.8),
    "min_p": SamplingParams(temperature=1.0, min_p=0.2),
    "all": SamplingParams(temperature=0.9, top_k=4, top_p=0.9, min_p=0.05),
    "greedy": SamplingParams(),
}
# How a draft is made: every token sampled, every token an argmax, or a sampled one after an argmax after a
# sampled one.
KINDS = ("sampled", "one_hot", "mixed")


def table(vocab: int, depth: int, seed: int) -> Tensor:
    """Logits ``[nodes, vocab]`` of every prefix shorter than ``depth``."""
    nodes = sum(vocab**d for d in range(depth))
    return 1.2 * torch.randn(nodes, vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def target_law(logits: Tensor, params: SamplingParams) -> Tensor:
    """p of every node as transformers' own warpers make it."""
    if params.greedy:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    scores = TemperatureLogitsWarper(params.temperature)(None, logits)
    scores = TopKLogitsWarper(params.top_k)(None, scores) if params.top_k else scores
    scores = TopPLogitsWarper(params.top_p)(None, scores) if params.top_p < 1 else scores
    return (MinPLogitsWarper(params.min_p)(None, scores) if params.min_p else scores).softmax(-1)


def continuations(p: Tensor, depth: int) -> list[Tensor]:
    """Entry d ``[V^d, V^(depth - d)]``: the joint distribution of what follows each prefix of d tokens."""
    vocab = p.shape[-1]
    distributions = [torch.ones(vocab**depth, 1, dtype=p.dtype)]
    for d in reversed(range(depth)):
        first = sum(vocab**i for i in range(d))
        here = p[first:first + vocab**d].unsqueeze(-1)
        distributions.insert(0, (here * distributions[0].view(vocab**d, vocab, -1)).flatten(1))
    return distributions


def law_of(logits: Tensor, params: SamplingParams) -> Tensor:
    return probabilities(logits, SamplingBatch.from_params([params] * len(logits)))


def is_one_hot(kind: str, step: int) -> bool:
    return kind == "one_hot" or kind == "mixed" and step == 1


def acceptance(accepts, p: Tensor, q: Tensor) -> Tensor:
    """The measure of the u in [0, 1) that pass the test; they lie below a threshold: bisection."""
    low, high = torch.zeros_like(p), torch.ones_like(p)
    for _ in range(60):
        middle = (low + high) / 2
        passes = accepts(middle, p, q)
        low, high = torch.where(passes, middle, low), torch.where(passes, high, middle)
    return low


def enumerate_law(monkeypatch, p_logits, q, params, gamma, kind, ids=None, reported=None,
                  accepts=None) -> Tensor:
    """The exact joint distribution ``[V^(gamma + 1)]`` of gamma + 1 output tokens: verify one draft, go on from the
    target.

    ``q [nodes, Vd]`` is the distribution drafts are drawn from (an argmax draft: its argmax), ``reported`` the one
    handed to the verifier (the same, unless a test wants a mistake), over the target ids ``ids``. Every draft
    meets every verdict in one call of verify_chain, whose own p, q and residual weights are recorded and
    weighed by their probabilities.
    """
    vocab = p_logits.shape[-1]
    ids_ = torch.arange(vocab) if ids is None else ids
    nodes = torch.zeros(1, 1, dtype=torch.int64)    # along every possible draft, [drafts, steps + 1]
    tokens = torch.zeros(1, 0, dtype=torch.int64)
    weight = torch.ones(1, dtype=torch.float64)     # the probability of that draft
    for step in range(gamma):
        drawn = q[nodes[:, -1]]
        if is_one_hot(kind, step):
            drawn = torch.nn.functional.one_hot(drawn.argmax(-1), len(ids_)).double()
        weight = (weight.unsqueeze(-1) * drawn).flatten()
        child = (nodes[:, -1:] * vocab + 1 + ids_).flatten()
        token = ids_.repeat(len(tokens)).unsqueeze(-1)
        tokens = torch.cat([tokens.repeat_interleave(len(ids_), 0), token], -1)
        nodes = torch.cat([nodes.repeat_interleave(len(ids_), 0), child.unsqueeze(-1)], -1)
    tokens, nodes, weight = (x[weight > 0].repeat_interleave(gamma + 1, 0) for x in (tokens, nodes, weight))

    batch = len(weight)
    wanted = torch.arange(batch) % (gamma + 1)          # the verdict this copy of the draft shall get
    soft = torch.tensor([reported is not None or not is_one_hot(kind, j) for j in range(gamma)]).repeat(batch)
    probs = (q if reported is None else reported)[nodes[:, :-1].flatten()][soft]
    draft = Draft(tokens.flatten(), torch.arange(batch + 1) * gamma, probs,
                  torch.where(soft, soft.cumsum(0) - 1, -1), ids)
    # first drafts are tested first, and only requests that accepted those meet the test of the second ones
    seen = {name: torch.zeros(batch, gamma, dtype=torch.float64) for name in "pq"}
    depths = iter(range(gamma))

    def record_accepts(u, p, q):
        depth = next(depths, gamma)
        here = (wanted >= depth).nonzero().squeeze(-1) if depth < gamma else wanted[:0]
        if len(here):
            seen["p"][here, depth], seen["q"][here, depth] = p.double(), q.double()
        return wanted[here] > depth

    def record_race(weights, seed, position, purpose):
        seen["weights"] = torch.empty_like(weights)
        seen["weights"][wanted.argsort(stable=True)] = weights      # in the order in which the requests ended
        return torch.zeros(batch, dtype=torch.int64)

    accepts = accepts or chain.accepts
    with monkeypatch.context() as patch:
        patch.setattr(chain, "accepts", record_accepts)
        patch.setattr(chain, "exponential_race", record_race)
        sampling = SamplingBatch.from_params([params] * batch)
        position = torch.zeros(batch, dtype=torch.int64)
        verdict = chain.verify_chain(p_logits[nodes].flatten(0, 1), draft, sampling, position)
    assert torch.equal(verdict.num_accepted, wanted)

    a = acceptance(accepts, seen["p"], seen["q"])
    last = seen["weights"] / seen["weights"].sum(-1, keepdim=True)
    after = continuations(target_law(p_logits, params), gamma + 1)
    joint = torch.zeros(vocab ** (gamma + 1), dtype=torch.float64)
    for n in range(gamma + 1):
        of = wanted == n
        chance = weight[of] * a[of, :n].prod(-1) * (1 - a[of, n] if n < gamma else 1)
        prefix = nodes[of, n] - sum(vocab**d for d in range(n))
        emitted = torch.zeros(vocab**n, vocab, dtype=torch.float64)
        emitted.index_add_(0, prefix, chance.unsqueeze(-1) * last[of])
        joint += (emitted.flatten().unsqueeze(-1) * after[n + 1]).flatten()
    return joint


def total_variation(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().sum() / 2)


@pytest.mark.parametrize("vocab, gamma", [(3, 1), (3, 3), (4, 2), (5, 3), (6, 1), (6, 3)])
@pytest.mark.parametrize("params", [p for p in PARAMS if p != "greedy"])
@pytest.mark.parametrize("kind", KINDS)
def test_exact_distribution(monkeypatch, vocab, gamma, params, kind):
    params = PARAMS[params]
    p_logits, q_logits = table(vocab, gamma + 1, seed=1), table(vocab, gamma + 1, seed=2)
    joint = enumerate_law(monkeypatch, p_logits, law_of(q_logits, params), params, gamma, kind)
    assert float(joint.sum()) == pytest.approx(1, abs=1e-12)
    assert total_variation(joint, continuations(target_law(p_logits, params), gamma + 1)[0][0]) < 1e-12


@pytest.mark.parametrize("params", ["plain", "all"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ids", [[0, 2], [1, 3, 4], [4]])
def test_exact_distribution_with_a_subset_vocabulary(monkeypatch, params, kind, ids):
    vocab, gamma, params = 5, 3, PARAMS[params]
    p_logits, ids = table(vocab, gamma + 1, seed=3), torch.tensor(ids)
    q = law_of(table(vocab, gamma + 1, seed=4)[:, ids], params)
    joint = enumerate_law(monkeypatch, p_logits, q, params, gamma, kind, ids)
    assert total_variation(joint, continuations(target_law(p_logits, params), gamma + 1)[0][0]) < 1e-12


def test_exact_distribution_where_q_is_p_and_where_they_share_nothing(monkeypatch):
    vocab, gamma, params = 4, 2, PARAMS["plain"]
    p_logits = table(vocab, gamma + 1, seed=5)
    even = torch.arange(vocab) % 2 == 0
    apart = law_of(p_logits.masked_fill(even, -torch.inf), params)
    for logits, q in ((p_logits, law_of(p_logits, params)), (p_logits.masked_fill(~even, -torch.inf), apart)):
        joint = enumerate_law(monkeypatch, logits, q, params, gamma, "sampled")
        assert total_variation(joint, continuations(target_law(logits, params), gamma + 1)[0][0]) < 1e-12


# The mistakes. Each takes the true case apart in one place; `kind` is the draft it is made with.
def swapped(u, p, q):
    return u * p < q


def residual_is_p(p, q):
    return p.expand_as(q)


MISTAKES = {
    "p and q swapped": dict(accepts=swapped),
    "residual is p": dict(residual=residual_is_p),
    "argmax passed as softmax": dict(kind="one_hot", reported=1.0),
    "q at another temperature": dict(reported=0.7),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_enumeration_catches(monkeypatch, mistake):
    vocab, gamma, params, mistake = 4, 2, PARAMS["plain"], MISTAKES[mistake]
    p_logits, q_logits = table(vocab, gamma + 1, seed=1), table(vocab, gamma + 1, seed=2)
    if "residual" in mistake:
        monkeypatch.setattr(chain, "residual", mistake["residual"])
    reported = law_of(q_logits / mistake["reported"], params) if "reported" in mistake else None
    joint = enumerate_law(monkeypatch, p_logits, law_of(q_logits, params), params, gamma,
                          mistake.get("kind", "sampled"), reported=reported, accepts=mistake.get("accepts"))
    assert total_variation(joint, continuations(target_law(p_logits, params), gamma + 1)[0][0]) > 0.01


def speculate(p_logits: Tensor, q_logits: Tensor, params: list[SamplingParams], length: int, kind: str,
              ids: Tensor | None = None, reported: float | None = None) -> Tensor:
    """Speculative decoding of a batch until all have ``length`` tokens; which output each wrote, in [0,
    V^length).

    The number of drafted tokens differs from request to request and step to step, 0 to 3. ``reported``
    divides the drafter's logits once more before q is handed to the verifier: a mistake.
    """
    vocab, everyone = p_logits.shape[-1], SamplingBatch.from_params(params)
    node, written = (torch.zeros(len(params), dtype=torch.int64) for _ in range(2))
    steps = 0
    while (alive := (written < length).nonzero().squeeze(-1)).numel():
        sampling, start, base = everyone.rows(alive), node[alive], written[alive]
        gamma = torch.minimum((alive + steps) % 4, length - 1 - base)
        nodes, tokens, distributions = [start], [], []
        for j in range(int(gamma.max())):
            logits = q_logits[nodes[-1].clamp(max=len(q_logits) - 1)]   # rows past their gamma: dropped below
            q = probabilities(logits, sampling)
            distributions.append(q if reported is None else probabilities(logits / reported, sampling))
            column = q.argmax(-1) if is_one_hot(kind, j) else exponential_race(q, sampling.seed, base + j, DRAFT, base)
            tokens.append(column if ids is None else ids[column])
            nodes.append(nodes[-1] * vocab + 1 + tokens[-1])
        steps += 1
        drafted = torch.arange(len(tokens)) < gamma.unsqueeze(-1)           # [alive, steps]
        draft = Draft.empty(len(alive))
        if tokens:
            soft = torch.tensor([reported is not None or not is_one_hot(kind, j) for j in range(len(tokens))])
            soft = soft.expand(len(alive), -1)[drafted]
            draft = Draft(torch.stack(tokens, 1)[drafted], torch.cat([gamma.new_zeros(1), gamma.cumsum(0)]),
                          torch.stack(distributions, 1)[drafted][soft], torch.where(soft, soft.cumsum(0) - 1, -1), ids)
        needed = torch.arange(len(nodes)) <= gamma.unsqueeze(-1)
        verdict = chain.verify_chain(p_logits[torch.stack(nodes, 1)[needed]], draft, sampling, base)
        assert not verdict.failed.any()
        for token in verdict.tokens.unbind(-1):
            start = torch.where(token >= 0, start * vocab + 1 + token, start)
        node[alive], written[alive] = start, base + verdict.num_accepted + 1
    return node - sum(vocab**d for d in range(length))


def p_value(outputs: Tensor, distribution: Tensor) -> float:
    seen = outputs.bincount(minlength=len(distribution))
    assert not seen[distribution == 0].any(), "an output the target cannot write"
    return stats.chisquare(seen[distribution > 0].numpy(),
                           (distribution[distribution > 0] / distribution.sum() * len(outputs)).numpy()).pvalue


VOCAB, LENGTH, REQUESTS = 4, 3, 50_000


def chi_square(params: SamplingParams, kind: str, ids=None, reported=None) -> float:
    p_logits, q_logits = table(VOCAB, LENGTH, seed=1), table(VOCAB, LENGTH, seed=2)
    seeded = [params.with_(seed=seed) for seed in range(REQUESTS)]
    q_logits = q_logits if ids is None else q_logits[:, ids]
    outputs = speculate(p_logits.float(), q_logits.float(), seeded, LENGTH, kind, ids, reported)
    return p_value(outputs, continuations(target_law(p_logits, params), LENGTH)[0][0])


@pytest.mark.parametrize("params, kind, ids", [
    ("plain", "sampled", None), ("plain", "one_hot", None), ("all", "mixed", None),
    ("plain", "mixed", [0, 2, 3]),
])
def test_draws_follow_the_distribution(params, kind, ids):
    assert chi_square(PARAMS[params], kind, None if ids is None else torch.tensor(ids)) > 1e-7


@pytest.mark.parametrize("mistake", MISTAKES)
def test_chi_square_catches(monkeypatch, mistake):
    mistake = dict(MISTAKES[mistake])
    for name in ("accepts", "residual"):
        if name in mistake:
            monkeypatch.setattr(chain, name, mistake.pop(name))
    assert chi_square(PARAMS["plain"], mistake.pop("kind", "sampled"), **mistake) < 1e-20


def test_chi_square_catches_noise_used_twice(monkeypatch):
    """Were the accept test of the first token to reuse the bits it was drawn with, the distribution would be lost."""
    def drafts(seed, position):
        return (philox(FINAL, position, DRAFT, 0, seed)[0] >> 8) * 2.0**-24     # what column 0 raced with

    monkeypatch.setattr(chain, "uniform", lambda seed, position, purpose: torch.where(
        position == 0, drafts(seed, position), uniform(seed, position, purpose)))
    assert chi_square(PARAMS["plain"], "sampled") < 1e-20


def test_each_request_of_a_mixed_batch_follows_its_own_distribution():
    p_logits, q_logits = table(VOCAB, LENGTH, seed=6), table(VOCAB, LENGTH, seed=7)
    names = list(PARAMS)
    params = [PARAMS[names[i % len(names)]].with_(seed=i // len(names)) for i in range(25_000 * len(names))]
    outputs = speculate(p_logits.float(), q_logits.float(), params, LENGTH, "mixed")
    for i, name in enumerate(names):
        distribution = continuations(target_law(p_logits, PARAMS[name]), LENGTH)[0][0]
        if name == "greedy":
            assert (outputs[i::len(names)] == distribution.argmax()).all()
        else:
            assert p_value(outputs[i::len(names)], distribution) > 1e-7, name
