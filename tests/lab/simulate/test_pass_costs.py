"""Roofline costs: floors, the planner's own counts, tensor parallelism, memory."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spin_core.decompose import plan
from spin_core.lab.simulate.recording import Passes
from spin_core.lab.simulate.costs import Roofline, Tables
from spin_core.lab.simulate.profiles import (DATA, DRAFTERS, HARDWARE, TARGETS, TENSOR_PARALLEL, WORK, attention_share,
                                         fit, fitted, work)

V100 = HARDWARE["V100-32GB"]
SEVEN = TARGETS["LLaMA-7B"]
PADDED, PIECES = (Roofline(SEVEN, DRAFTERS, V100, strategy=s) for s in ("padded", "decomposed"))
batches = st.lists(st.tuples(st.integers(20, 900), st.integers(0, 6)), min_size=1, max_size=12)


def arrays(batch):
    return tuple(np.array(column) for column in zip(*batch))


def test_models_have_the_parameters_of_their_names():
    sizes = {m.name: m.parameters / 1e9 for m in (*TARGETS.values(), *DRAFTERS.values())}
    expected = {"LLaMA-7B": 6.74, "LLaMA-13B": 13.02, "LLaMA-30B": 32.53, "68M": 0.068, "265M": 0.265, "616M": 0.616,
                "1.1B": 1.1, "1.4B": 1.4}
    assert sizes == {name: pytest.approx(size, rel=0.01) for name, size in expected.items()}
    assert SEVEN.kv_bytes("fp16") == 2 ** 19


def test_verification_cannot_beat_reading_the_weights():
    """About 15 ms at the V100's peak bandwidth, and 18 at what is reached: far below the published 529 ms."""
    floor = 2 * SEVEN.read / V100.bandwidth
    assert floor == pytest.approx(0.0147, rel=0.01)
    one = PIECES.verify(np.array([100]), np.array([0])).seconds
    assert floor < one < 1.5 * floor
    sixteen = PADDED.verify(np.full(16, 300), np.full(16, 4)).seconds
    assert one < sixteen < 0.1


@settings(max_examples=60, deadline=None)
@given(batches)
def test_the_model_charges_what_the_planner_counts(batch):
    lengths, drafted = arrays(batch)
    keys, queries = (lengths + drafted).tolist(), (drafted + 1).tolist()
    for costs, strategy in ((PADDED, "padded"), (PIECES, "decomposed")):
        got = costs.verify(lengths, drafted)
        made = plan(keys, queries, strategy, costs=costs.attention)
        if strategy == "padded":        # the batch's rectangle is as wide as its longest text and draft
            assert made.kv_touched <= got.touched == len(lengths) * (lengths.max() + drafted.max())
        else:
            assert got.touched == made.kv_touched
        base = costs._verify.seconds(len(batch) * max(queries) if strategy == "padded" else sum(queries), 0)
        if strategy == "decomposed" and base > costs._verify.launches + costs._verify.fixed + 1e-9:
            assert got.seconds - base == pytest.approx(SEVEN.layers * made.seconds, rel=1e-6, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(batches)
def test_decomposition_never_touches_more_keys_and_never_takes_longer(batch):
    lengths, drafted = arrays(batch)
    padded, pieces = PADDED.verify(lengths, drafted), PIECES.verify(lengths, drafted)
    merging = SEVEN.layers * (PIECES.attention.merge_call + 1e-6)
    assert pieces.touched <= padded.touched
    assert pieces.seconds <= padded.seconds + merging


def test_gathering_is_what_a_moving_batch_pays():
    still = Roofline(SEVEN, DRAFTERS, V100, strategy="padded", gathered=False)
    lengths, drafted = np.array([400, 50, 60, 70]), np.full(4, 4)
    extra = PADDED.verify(lengths, drafted).seconds - still.verify(lengths, drafted).seconds
    copied = (lengths.sum() + 4 * 404) * SEVEN.kv_bytes("fp16")
    assert extra == pytest.approx(copied / V100.stream)


def test_tensor_parallelism_divides_the_work_and_adds_messages():
    thirty = TARGETS["LLaMA-30B"]
    one, four = (Roofline(thirty, {}, replace(V100, memory=1e12), devices=d) for d in (1, 4))
    lengths, drafted = np.full(8, 200), np.full(8, 4)
    a, b = one.verify(lengths, drafted).seconds, four.verify(lengths, drafted).seconds
    assert a / 4 < b < a / 3
    assert four._verify.fixed > one._verify.fixed and four._verify.reduce > one._verify.reduce == 0


def test_small_deep_drafters_wait_for_launches_and_big_ones_for_their_weights():
    for name, bound in (("68M", "launches"), ("265M", "launches"), ("1.4B", "weights")):
        p = PADDED._products[name]
        assert (p.launches > p.weights) == (bound == "launches")
    times = [PADDED.draft(name, 8, [8] * 4, 8 * 150) for name in DRAFTERS]
    assert times == sorted(times)


def test_memory_padded_runs_out_first():
    lengths = [60] * 31 + [900]
    big = 32 * 1900 // 32
    assert PADDED.memory(lengths) > PIECES.memory(lengths)

    def fits(costs, lengths) -> bool:
        return costs.memory(lengths) <= costs.hardware.memory

    assert fits(PIECES, lengths) and fits(PADDED, lengths)
    assert fits(PIECES, [60] * 31 + [big]) and not fits(PADDED, [60] * 31 + [big])
    assert sum([500] * 64) <= PIECES.kv_room and fits(PIECES, [500] * 64)
    assert not fits(PIECES, [PIECES.kv_room + 1])


@pytest.mark.parametrize("target, card", [(t, c) for t in TARGETS for c in ("V100-16GB", "V100-32GB")])
def test_the_paper_s_placement_fits_except_where_it_says(target, card):
    """7B on one device, 13B on two, 30B on four: the last needs cards of 32 GB in 16-bit."""
    make = lambda: Roofline(TARGETS[target], DRAFTERS, HARDWARE[card], devices=TENSOR_PARALLEL[target])  # noqa: E731
    if target == "LLaMA-30B" and card == "V100-16GB":
        with pytest.raises(ValueError, match="does not fit"):
            make()
    else:
        assert make().kv_room > 0


def test_tables_are_the_measured_numbers():
    tables = Tables({"target": Passes((1, 9), (1.0, 9.0)), "a": Passes((1, 2), (0.1, 0.2)),
                     "look": Passes((1, 2), (.01, .01))},
                    overhead=0.5, lookups=("look",))
    assert tables.verify(np.array([5, 6]), np.array([2, 0])).seconds == 4.5
    assert tables.verify(np.array([5, 6]), np.array([2, 0]), extra=3).seconds == 7.5
    assert tables.draft("a", 2, [2, 1], 10) == pytest.approx(0.3)
    assert tables.draft("look", 2, [1, 1, 1], 10) == 0.01
    assert tables.reading("a", 1, 1) == pytest.approx(0.1) and tables.reading("look", 9, 1) == 0


CPU = replace(V100, flops={"fp32": 2e11}, bandwidth=2e10, memory=1e12, compute=0.9, traffic=0.8, keys=0.3, launch=2e-5,
              turn=1e-3, overlap=False)
SHAPES = [(rows, slots, context) for context in (48, 192, 384)
          for rows, slots in ((1, 1), (2, 2), (4, 4), (8, 8), (24, 8), (72, 8))]


def passes_on(hardware, names=("68M", "265M", "1.1B")) -> list[dict]:
    """What a roofline says of verifications by these models, as rows of ``bench passes``."""
    rows = []
    for name in names:
        costs = Roofline(DRAFTERS[name], {}, hardware, dtype="fp32")
        for n, slots, context in SHAPES:
            seconds = costs.verify(np.full(slots, context + 1), np.full(slots, n // slots - 1)).seconds
            rows.append(work(DRAFTERS[name], n, slots, context, "fp32") | {"seconds": seconds})
    return rows


def test_a_fit_finds_the_profile_behind_the_passes():
    """But for what it leaves out: queries, and a launch of attention's own."""
    found = fit(passes_on(CPU), {"flops": 2e11, "bandwidth": 2e10}, 1e12)
    for factor in ("compute", "traffic", "keys", "launch", "turn"):
        assert getattr(found, factor) == pytest.approx(getattr(CPU, factor), rel=0.1), factor
    assert not found.overlap and "missed by 0%" in found.describe()
    again = passes_on(found)
    assert [p["seconds"] for p in again] == pytest.approx([p["seconds"] for p in passes_on(CPU)], rel=0.05)


def test_shares_are_of_the_peaks():
    one, half = (fit(passes_on(CPU), {"flops": f, "bandwidth": b}, 1e12) for f, b in ((2e11, 2e10), (4e11, 4e10)))
    assert (half.compute, half.traffic, half.keys) == pytest.approx((one.compute / 2, one.traffic / 2, one.keys / 2))
    assert half.stream == pytest.approx(one.stream)


def test_nothing_is_read_faster_than_at_the_peak():
    """These passes take as long as their weights, whatever else they do: the best that can be said of the keys is
    that."""
    passes = [dict(zip(WORK, (flop, weights, keys, 15.0)), seconds=weights / 1e10)
              for flop, weights, keys in ((1e9, 1e9, 4e6), (2e9, 1e9, 1e6), (4e9, 3e9, 2e6), (1e9, 5e9, 3e6))]
    found = fit(passes, {"flops": 1e11, "bandwidth": 2e10}, 1e12)
    assert found.traffic == pytest.approx(0.5, rel=0.01) and found.keys == pytest.approx(1.0, rel=0.01)
    assert found.compute > 50 and found.turn < 1e-3
    assert fit(passes, {"flops": 1e11, "bandwidth": 5e9}, 1e12).traffic == pytest.approx(1.0, rel=0.01)


def test_on_a_cpu_the_parts_of_a_pass_add_up():
    gpu, cpu = (Roofline(DRAFTERS["265M"], {}, replace(CPU, overlap=o), dtype="fp32") for o in (True, False))
    p, rows = cpu._verify, 4
    assert p.seconds(rows, 0.5) == pytest.approx(p.per_row * rows + p.weights + 0.5 + p.launches + CPU.turn)
    assert gpu._verify.seconds(rows, 0.5) == pytest.approx(max(p.per_row * rows, p.weights) + 0.5 + CPU.turn)


def test_what_a_step_takes_beside_its_passes_is_added():
    plain, more = (Roofline(DRAFTERS["265M"], {}, CPU, dtype="fp32", overhead=o) for o in (0.0, 0.25))
    lengths, drafted = np.array([40, 90]), np.array([2, 0])
    assert more.verify(lengths, drafted).seconds - plain.verify(lengths, drafted).seconds == pytest.approx(0.25)


def test_attention_s_share_is_the_slope_of_its_times():
    touched = (1000, 4000, 9000)
    read = [2 * 8 * 128 * 2 * n for n in touched]
    report = {"notes": ["32 heads over 8 kv heads of 128, torch.bfloat16, 16 threads"],
              "rows": [{"touched": n, "decomposed_us": 30 + 1e6 * b / (0.7 * 1e12)} for n, b in zip(touched, read)]}
    assert attention_share(report, 1e12) == pytest.approx(0.7)
    stored = DATA / "h100" / "verify_attention.json"
    if stored.exists():
        assert HARDWARE["H100-80GB"].keys == attention_share(json.loads(stored.read_text("utf-8")), 3350e9)
        assert 0.4 < HARDWARE["H100-80GB"].keys < 1 and stored.name in HARDWARE["H100-80GB"].describe()


def test_gpu_profiles_say_that_their_factors_are_assumed():
    for name, card in HARDWARE.items():
        assert ("assumed" in card.factors) == card.overlap == name.startswith(("V100", "A100", "H100"))


@pytest.mark.parametrize("path", sorted(DATA.glob("*/passes.json")), ids=lambda path: path.parent.name)
def test_stored_passes_make_a_profile(path):
    machine, report = HARDWARE[path.parent.name], json.loads(path.read_text("utf-8"))
    assert machine == fitted(path) and machine.memory == report["memory_gib"] * 2 ** 30
    for word in (path.name, report["cpu"], report["commit"][:7], report["date"][:10]):
        assert word in machine.factors
    assert all(0.05 < share < 3 for share in (machine.compute, machine.traffic, machine.keys))
    rows = [row for row in report["rows"] if row.get("fitted")]
    assert {row["context"] for row in rows} > {192} and {row["model"] for row in rows} > {"target"}
    costs = Roofline(DRAFTERS["68M"], {}, machine, dtype="fp32")        # any model: what is tested is the profile
    assert costs.verify(np.array([100]), np.array([0])).seconds > 0
    misses = [(row["flop"] / machine.arithmetic("fp32") + row["weights"] / machine.stream + row["keys"] / machine.gather
               + row["kernels"] * machine.launch + machine.turn) / row["seconds"] - 1 for row in rows]
    assert np.sqrt(np.mean(np.square(misses))) < 0.2


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="'grouped'"):
        Roofline(SEVEN, {}, V100, strategy="grouped")
    with pytest.raises(ValueError, match="3 devices"):
        Roofline(SEVEN, {}, V100, devices=3)
    with pytest.raises(ValueError, match="fp8"):
        Roofline(SEVEN, {}, V100, dtype="fp8")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rows": []}', '{"rows": 3}'])
def test_a_file_that_is_no_profile_is_named(tmp_path, text):
    path = tmp_path / "box" / "passes.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError, match="box/passes.json is no file of bench passes"):
        fitted(path)
