"""The bits are Philox's, the draws follow their distributions, and nothing but their counters matters."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from spin_core import randomness
from spin_core.randomness import ACCEPT, DRAFT, RESIDUAL, philox, exponential_race, uniform

WORD = 2**32 - 1


# The known-answer vectors of the Random123 distribution (counter, key, output).
@pytest.mark.parametrize("counter, key, words", [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD,) * 4, (WORD, WORD), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
])
def test_philox_known_answers(counter, key, words):
    seed = key[1] << 32 | key[0]
    seed -= 2**64 * (seed >= 2**63)     # the same 64 bits as a signed number
    assert tuple(int(w) for w in philox(*counter, seed)) == words


def plain_philox(counter: list[int], seed: int) -> list[int]:
    """Philox 4x32-10 in Python's integers, where nothing can overflow."""
    (a, b, c, d), k0, k1 = counter, seed & WORD, seed >> 32
    for _ in range(10):
        x, y = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = y >> 32 ^ b ^ k0, y & WORD, x >> 32 ^ d ^ k1, x & WORD
        k0, k1 = k0 + 0x9E3779B9 & WORD, k1 + 0xBB67AE85 & WORD
    return [a, b, c, d]


@given(st.lists(st.tuples(*[st.integers(0, WORD)] * 4, st.integers(0, 2**63 - 1)), min_size=1, max_size=40))
def test_philox_equals_plain_integers(draws):
    *counter, seed = torch.tensor(draws).unbind(-1)
    words = torch.stack(philox(*counter, seed), -1)
    assert words.tolist() == [plain_philox(list(c), s) for *c, s in draws]


def test_philox_broadcasts():
    position, seed = torch.arange(5).unsqueeze(-1), torch.arange(5).unsqueeze(-1) + 2**40
    wide = torch.stack(philox(torch.arange(3), position, 7, 9, seed))
    assert wide.shape == (4, 5, 3)
    for r in range(5):
        for v in range(3):
            assert wide[:, r, v].tolist() == plain_philox([v, r, 7, 9], r + 2**40)


TRITON = """
import torch, triton, triton.language as tl
from spin_core.randomness import philox

@triton.jit
def kernel(counter, seed, out, n: tl.constexpr):
    i = tl.arange(0, n)
    c0, c1, c2, c3 = (tl.load(counter + i), tl.load(counter + n + i), tl.load(counter + 2 * n + i),
                      tl.load(counter + 3 * n + i))
    a, b, c, d = tl.philox(tl.load(seed + i), c0, c1, c2, c3)
    for word, k in ((a, 0), (b, 1), (c, 2), (d, 3)):
        tl.store(out + k * n + i, word)

n = 1024
torch.manual_seed(0)
counter = torch.randint(0, 2**32, (4, n))
seed = torch.randint(0, 2**63 - 1, (n,))
seed[0], counter[:, 0] = 0, 0
seed[1], counter[:, 1] = 2**63 - 1, 2**32 - 1
out = torch.zeros(4, n, dtype=torch.uint32)
kernel[(1,)](counter.to(torch.uint32), seed, out, n)
assert torch.equal(out.to(torch.int64), torch.stack(philox(*counter, seed)))
print("equal")
"""


def test_philox_equals_triton(tmp_path):
    pytest.importorskip("triton")
    script = tmp_path / "kernel.py"         # the interpreter reads a kernel's source from its file
    script.write_text(TRITON)
    # chosen before triton is imported, hence a process of its own
    root = os.path.dirname(os.path.dirname(randomness.__file__))
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": root}
    run = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True)
    assert run.stdout.strip() == "equal", run.stderr


@given(st.integers(0, 2**63 - 1), st.integers(0, WORD), st.sampled_from([DRAFT, ACCEPT, RESIDUAL]),
       st.integers(0, WORD))
def test_uniform_is_the_top_24_bits_of_its_counter(seed, position, purpose, base):
    u = uniform(torch.tensor([seed]), torch.tensor([position]), purpose, base)
    assert u.dtype == torch.float32 and 0 <= float(u) < 1
    assert float(u) == (plain_philox([0, position, purpose, base], seed)[0] >> 8) / 2**24


@pytest.mark.parametrize("word, value", [(0, 0.0), (255, 0.0), (WORD, 1 - 2**-24)])
def test_uniform_at_the_ends(monkeypatch, word, value):
    monkeypatch.setattr(randomness, "philox", lambda *_: (torch.tensor([word]),))
    assert float(uniform(torch.tensor([0]), torch.tensor([0]), ACCEPT)) == value


def test_uniform_is_uniform_and_independent_of_its_neighbours():
    n = 50_000
    seed, position = torch.arange(n), torch.zeros(n, dtype=torch.int64)
    streams = {
        "u": uniform(seed, position, ACCEPT),
        "next position": uniform(seed, position + 1, ACCEPT),
        "next seed": uniform(seed + n, position, ACCEPT),
        "other purpose": uniform(seed, position, RESIDUAL),
        "other base": uniform(seed, position, ACCEPT, 1),
        "seed's high half": uniform(seed + (1 << 32), position, ACCEPT),
    }
    for name, u in streams.items():
        assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-7, name
        if name != "u":         # 8 x 8 squares of the unit square, equally likely
            cells = (streams["u"] * 8).long() * 8 + (u * 8).long()
            assert stats.chisquare(cells.bincount(minlength=64).numpy()).pvalue > 1e-7, name


def plain_race(weights: list[float], seed: int, position: int, purpose: int, base: int) -> tuple[int, float]:
    """The race in float64, entrant by entrant: the winner and how far ahead of the second in the closer round."""
    def final(weights: list[float], first: int) -> tuple[int, float]:
        speeds = []
        for v, w in enumerate(weights):
            word = plain_philox([first + v // 4, position, purpose, base], seed)[v % 4]
            speeds.append(w / -math.log1p(-(word + 0.5) / 2**32))
        best, second = sorted([0.0] + speeds)[:-3:-1]
        return speeds.index(best), best / second if second else math.inf

    groups = [weights[v:v + 64] for v in range(0, len(weights), 64)]
    group, lead = final([sum(g) for g in groups], 0)
    winner, other = final(groups[group], 2**31)
    return 64 * group + winner, min(lead, other)


@pytest.mark.parametrize("columns", [2, 4, 7, 64, 111, 700])
def test_race_is_the_exponential_race(columns):
    generator = torch.Generator().manual_seed(columns)
    weights = torch.rand(64, columns, generator=generator) ** 4
    seed = torch.randint(0, 2**62, (64,), generator=generator)
    position = torch.randint(0, 9999, (64,), generator=generator)
    base = torch.randint(0, 9999, (64,), generator=generator)
    won = exponential_race(weights, seed, position, DRAFT, base)
    compared = 0
    for r in range(64):
        winner, lead = plain_race(weights[r].tolist(), int(seed[r]), int(position[r]), DRAFT, int(base[r]))
        if lead > 1 + 1e-4:     # closer finishes are for rounding to decide
            assert won[r] == winner
            compared += 1
    assert compared > 50


def race_p_value(weights: torch.Tensor, draws: int, cells: torch.Tensor | None = None) -> float:
    """Chi-square of many races for one row of weights; ``cells`` groups columns."""
    columns = weights.shape[0]
    cells = torch.arange(columns) if cells is None else cells
    chunk = max(1, min(draws, 4_000_000 // columns))
    seen = torch.zeros(columns, dtype=torch.int64)
    for start in range(0, draws, chunk):
        seed = torch.arange(start, min(start + chunk, draws))
        tokens = exponential_race(weights.expand(len(seed), -1), seed, torch.full_like(seed, 3), RESIDUAL)
        seen += tokens.bincount(minlength=columns)
    assert not seen[weights == 0].any()
    observed = torch.zeros(int(cells.max()) + 1, dtype=torch.int64).index_add(0, cells, seen)
    distribution = torch.zeros(len(observed), dtype=torch.float64).index_add(0, cells, weights.double())
    distribution /= distribution.sum()
    keep = distribution > 0
    return stats.chisquare(observed[keep].numpy(), (distribution[keep] * draws).numpy()).pvalue


@pytest.mark.parametrize("weights", [
    [1.0, 1.0, 1.0, 1.0, 1.0],
    [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.03125],
    [0.9, 0.0, 0.1],
    [1e-30, 3e-30, 0.0, 6e-30],             # any positive sum will do
    [700.0, 200.0, 90.0, 9.0, 1.0],
    [0.001] * 100 + [0.0] * 50 + [0.0075] * 120,    # over several groups of columns
])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_race_follows_its_weights(weights, dtype):
    assert race_p_value(torch.tensor(weights, dtype=dtype), 100_000) > 1e-7


def test_the_chi_square_would_notice_a_bias():
    weights = torch.tensor([0.5, 0.25, 0.125, 0.125])
    seed = torch.arange(100_000)
    biased = weights * torch.tensor([1.0, 1.05, 1.0, 1.0])
    tokens = exponential_race(biased.expand(100_000, -1), seed, seed * 0, RESIDUAL)
    expected = (weights.double() * 100_000).numpy()
    assert stats.chisquare(tokens.bincount(minlength=4).numpy(), expected).pvalue < 1e-7


def test_race_follows_a_skewed_distribution_over_a_real_vocabulary():
    columns, draws = 49152, 4000
    weights = torch.arange(1, columns + 1, dtype=torch.float64).pow(-1.1).to(torch.float32)   # Zipf
    order = torch.randperm(columns, generator=torch.Generator().manual_seed(0))
    cells = torch.arange(columns).float().log2().clamp(min=0).long()        # octaves of rank
    assert race_p_value(weights[order], draws, cells[order]) > 1e-7


tiny = st.sampled_from([0.0, 1e-45, 3e-45, 1e-40, 1.2e-38, 1e-30, 1e-9, 0.5, 1.0, 3e37])


@given(st.lists(st.lists(tiny, min_size=9, max_size=9).map(lambda row: row[:5] + [0.0] * 120 + row[5:]), min_size=1,
                max_size=8), st.integers(0, 2**62))
@settings(max_examples=300, deadline=None)
def test_a_zero_weight_never_wins(rows, seed):
    weights = torch.tensor(rows, dtype=torch.float32)
    n = len(rows)
    tokens = exponential_race(weights, torch.arange(n) + seed, torch.arange(n), RESIDUAL)
    for row, token in zip(weights, tokens.tolist()):
        if row.any():
            assert row[token] > 0
        else:
            assert token == -1


@pytest.mark.parametrize("words", [(0,) * 4, (WORD,) * 4])
def test_a_zero_weight_never_wins_at_the_ends_of_the_noise(monkeypatch, words):
    monkeypatch.setattr(randomness, "philox", lambda block, *_: tuple(torch.full((1, len(block)), w) for w in words))
    for i in (0, 1, 3, 63, 64, 70, 129):
        for weight in (1e-45, 1.0, 3e38):
            weights = torch.zeros(1, 130)
            weights[0, i] = weight
            assert exponential_race(weights, torch.tensor([0]), torch.tensor([0]), DRAFT).tolist() == [i]


def test_rows_without_a_distribution_are_reported_and_harm_no_other():
    good = torch.rand(3, 10, generator=torch.Generator().manual_seed(1))
    weights = torch.cat([torch.zeros(1, 10), good, torch.full((1, 10), torch.nan), good[:1].clone()])
    weights[5, 7] = torch.inf
    seed, position = torch.arange(6), torch.arange(6) + 20
    tokens = exponential_race(weights, seed, position, RESIDUAL)
    assert tokens[[0, 4, 5]].tolist() == [-1, -1, -1]
    assert torch.equal(tokens[1:4], exponential_race(good, seed[1:4], position[1:4], RESIDUAL))


def test_no_rows():
    none = torch.zeros(0, dtype=torch.int64)
    assert exponential_race(torch.zeros(0, 5), none, none, DRAFT).shape == (0,)
    assert uniform(none, none, ACCEPT).shape == (0,)


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_draws_do_not_depend_on_the_rows_beside_them(data):
    n = 12
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    weights = torch.rand(n, 37, generator=generator) ** 3
    seed = torch.randint(0, 2**62, (n,), generator=generator)
    position, base = torch.arange(n) * 5, torch.arange(n) * 3
    chosen = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n)))
    args = seed[chosen], position[chosen], DRAFT, base[chosen]
    assert torch.equal(exponential_race(weights, seed, position, DRAFT, base)[chosen],
                       exponential_race(weights[chosen], *args))
    assert torch.equal(uniform(seed, position, DRAFT, base)[chosen], uniform(*args))
