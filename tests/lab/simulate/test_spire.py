"""SPIRe's throughput model against the numbers printed in its paper."""

from __future__ import annotations

import pytest

from spin_core.lab.simulate import spire


def test_the_target_has_the_published_number_of_parameters():
    assert spire.TARGET.stack == 67_117_056


@pytest.mark.parametrize("system", spire.SYSTEMS, ids=lambda s: s.name)
def test_published_multipliers_to_the_printed_digits(system):
    assert round(spire.multiplier(system, 64, 512), 2) == spire.PUBLISHED[system.name]


@pytest.mark.parametrize("system", spire.SYSTEMS_70B, ids=lambda s: s.name)
def test_published_multipliers_of_70b_to_the_printed_digits(system):
    got = spire.multiplier(system, 64, 65_536, target=spire.TARGET_70B, tau=system.tau[512])
    assert round(got, 2) == spire.PUBLISHED_70B[system.name]


def test_the_ablation_is_the_printed_tau_over_the_printed_cost():
    """The paper's dt, written out in numbers: target 8/512/128/4096, SPIRe 2/512/128/4096, 8 heads, k = 4."""
    B, L, HOI, k = 64, 512, 600, 4
    N_t, N_d = (layers * (2 * 512 + 4 * 8 * 512 * 128 + 3 * 512 * 4096) for layers in (8, 2))
    target = (N_t + 2 * B * L * 8 * 8 * 128) * HOI

    def dt(seen, memory):
        arithmetic = 2 * N_d * B + (2 * B * 2 * 8 * 512 * 128 if memory else 0)
        draft = max(arithmetic, (N_d + 2 * B * seen * 2 * 8 * 128) * HOI)
        return (k * draft + max((k + 1) * 2 * N_t * B, target)) / target

    sparse = 1 + L // 8
    printed = {"SPIRe": (3.401, dt(sparse, True)), "no sparse KV cache": (3.401, dt(L, True)),
               "random initialisation": (3.105, dt(sparse, True)), "hard-target loss": (3.069, dt(sparse, True)),
               "distillation only": (3.375, dt(sparse, True)), "no feedback memory": (3.352, dt(sparse, False)),
               "also no target activations": (2.959, dt(sparse, False))}
    ladder = spire.ablation()
    assert list(ladder) == list(printed)
    for rung, (tau, cost) in printed.items():
        assert ladder[rung] == pytest.approx((tau, tau / cost)), rung
    assert round(ladder["SPIRe"][1], 2) == 2.78
    # reading less of the cache is worth more than everything that was done for tau
    assert min(ladder, key=lambda name: ladder[name][1]) == "no sparse KV cache"


def test_the_gains_of_the_abstract():
    """Over 100 % more than with a much smaller draft, over 35 % more than by sparse self-speculation."""
    small, self_, ours = (spire.multiplier(system, 64, 512) for system in spire.SYSTEMS)
    assert ours / small > 2 and ours / self_ > 1.35


def test_a_feedback_memory_costs_nothing_while_memory_traffic_rules():
    with_, without = spire.SPIRE, spire.ABLATION["no feedback memory"][1]
    assert spire.cost_ratio(with_, 64, 512) == spire.cost_ratio(without, 64, 512)
    assert spire.cost_ratio(with_, 64, 512, hoi=1) > spire.cost_ratio(without, 64, 512, hoi=1)


def test_a_fixed_window_turns_the_lead_into_a_loss():
    assert spire.window_ratio(512) == spire.window_ratio(512, window=None)      # 64 is an eighth of 512
    assert round(spire.window_ratio(2048), 3) == 1.025
    assert round(spire.window_ratio(8192), 3) == 0.914
    assert spire.window_ratio(8192, window=None) > 1.15                         # with the window of the plots it stays


def test_speculation_loses_where_arithmetic_is_the_limit():
    """Large batch, short text: the target is busy with arithmetic already, rejected tokens only add to it."""
    assert spire.multiplier(spire.VANILLA, 4096, 16, tau=2.6) < 1


def test_numbers_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="context 0"):
        spire.multiplier(spire.SPIRE, 64, 0)
    with pytest.raises(ValueError, match="window -1"):
        spire.multiplier(spire.SPIRE, 64, 512, window=-1)
