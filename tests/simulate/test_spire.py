"""SPIRe's throughput model against the numbers printed in its paper."""

from __future__ import annotations

import pytest

from spin_core.simulate import spire


def test_the_target_has_the_published_number_of_parameters():
    assert spire.TARGET.parameters == 67_117_056


@pytest.mark.parametrize("system", spire.SYSTEMS, ids=lambda s: s.name)
def test_published_multipliers_to_the_printed_digits(system):
    assert round(spire.multiplier(system, 64, 512), 2) == spire.PUBLISHED[system.name]


@pytest.mark.parametrize("system", spire.SYSTEMS_70B, ids=lambda s: s.name)
def test_published_multipliers_of_70b_to_the_printed_digits(system):
    got = spire.multiplier(system, 64, 65_536, target=spire.TARGET_70B, tau=system.tau[512])
    assert round(got, 2) == spire.PUBLISHED_70B[system.name]


def test_the_ablation_ranks_the_parts():
    """The printed tau of all seven rungs, and what the model makes of them."""
    ladder = spire.ablation()
    assert [tau for tau, _ in ladder.values()] == [3.401, 3.401, 3.105, 3.069, 3.375, 3.352, 2.959]
    assert {name: round(gain, 2) for name, (_, gain) in ladder.items()} == {
        "SPIRe": 2.78, "no sparse KV cache": 1.70, "random initialisation": 2.54, "hard-target loss": 2.51,
        "distillation only": 2.76, "no feedback memory": 2.74, "also no target activations": 2.42}
    # reading less of the cache is worth more than everything that was done for tau
    assert min(ladder, key=lambda name: ladder[name][1]) == "no sparse KV cache"


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
