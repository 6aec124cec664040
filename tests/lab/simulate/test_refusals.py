"""Numbers that cannot be are refused by name in every public function of the simulator: none makes a clock stand still
or a result void."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tiny

from spin_core.lab.simulate import acceptance, arrivals, oracle, paper, profiles, spire
from spin_core.lab.simulate.best_shape import best_shape
from spin_core.lab.simulate.costs import Roofline, Tables
from spin_core.lab.simulate.micro_batches import split_time, steady
from spin_core.lab.simulate.recording import Passes, Recording, memory_bound, verifications
from spin_core.lab.simulate.replay import replay
from spin_core.lab.simulate.simulator import simulate
from spin_core.lab.simulate.synthetic import synthetic
from spin_core.select import make

NAN, INF = float("nan"), float("inf")
WHOLE, COUNT = (NAN, INF, -1, 1.5), (NAN, INF, -1, 0, 1.5, "x", None)           # for numbers >= 0, and >= 1
SECONDS, ABOVE, SHARE = (NAN, INF, -1.0), (NAN, INF, -1.0, 0.0), (NAN, INF, -0.1, 1.1)
TARGET, CARD, DRAFTERS = profiles.TARGETS["LLaMA-7B"], profiles.HARDWARE["V100-32GB"], profiles.DRAFTERS


def texts(**options) -> Recording:
    return synthetic(**dict(distributions={"a": {"d": .6}}, costs={"d": .1}, order=["a"] * 4, tokens=8) | options)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def spin():
    return make("spin", ["d"])


def passes(**seconds: float) -> dict[str, Passes]:
    """A second per pass, but for ``seconds`` of the target ("target"), or of a drafter ("d")."""
    return {name: Passes((1, 2), (seconds.get(name, 1.0),) * 2) for name in ("target", "d")}


class Broken(Tables):
    """Tables, but ``what`` takes ``seconds``."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(passes())
        self.what, self.seconds = what, seconds

    def draft(self, *args):
        return self.seconds if self.what == "draft" else super().draft(*args)

    def reading(self, *args):
        return self.seconds if self.what == "reading" else super().reading(*args)

    def verify(self, *args):
        found = super().verify(*args)
        return found._replace(seconds=self.seconds) if self.what == "verify" else found


REFUSED = {
    "simulate, arrivals": (lambda v: simulate(texts(), Tables(passes()), "d", arrivals=[0.0] * 3 + [v]), SECONDS),
    "simulate, batch": (lambda v: simulate(texts(), Tables(passes()), "d", batch=v), COUNT),
    "simulate, gamma": (lambda v: simulate(texts(), Tables(passes()), "d", gamma=v), WHOLE),
    "simulate, micro_batches": (lambda v: simulate(texts(), Tables(passes()), "d", micro_batches=v), COUNT),
    "simulate, capacities": (lambda v: simulate(texts(), Tables(passes()), spin(), capacities={"d": v}), WHOLE),
    "simulate, capacities beside a drafter": (
        lambda v: simulate(texts(), Tables(passes()), "d", capacities={"d": v}), (1, 0, NAN)),
    "simulate, draft": (lambda v: simulate(texts(), Broken("draft", v), "d"), SECONDS),
    "simulate, draft of a policy": (lambda v: simulate(texts(), Broken("draft", v), spin()), SECONDS),
    "simulate, reading": (lambda v: simulate(texts(), Broken("reading", v), make("fixed:d", ["d"])), (NAN, INF, -99.0)),
    "simulate, verify": (lambda v: simulate(texts(), Broken("verify", v), "d"), ABOVE),
    "replay, batch": (lambda v: replay(texts(), spin(), batch=v), COUNT),
    "replay, order": (lambda v: replay(texts(), spin(), order=[v]), (NAN, INF, 0.5, 9, -9)),
    "replay, selector": (lambda v: replay(texts(), v), ("d", None, NAN)),
    "times, count": (lambda v: arrivals.times("bursty", v, 1.0), WHOLE),
    "times, rate": (lambda v: arrivals.times("poisson", 3, v), ABOVE),
    "times, seed": (lambda v: arrivals.times("poisson", 3, 1.0, v), WHOLE),
    "poisson, count": (lambda v: arrivals.poisson(v, 1.0, rng()), WHOLE),
    "poisson, rate": (lambda v: arrivals.poisson(3, v, rng()), ABOVE),
    "bursty, count": (lambda v: arrivals.bursty(v, 1.0, 4.0, rng()), WHOLE),
    "bursty, rate": (lambda v: arrivals.bursty(3, v, 4.0, rng()), ABOVE),
    "bursty, burst": (lambda v: arrivals.bursty(3, 1.0, v, rng()), (*ABOVE, 0.5)),
    "Passes, seconds": (lambda v: passes(d=v), SECONDS),
    "Passes, rows": (lambda v: Passes((v, 100), (1.0, 2.0)), COUNT[:5]),
    "Recording, prompts": (lambda v: replace(texts(), prompts=np.full(4, v)), (NAN, 1.5, 0, -1)),
    "memory_bound, row": (lambda v: memory_bound(texts(), v), SECONDS),
    "verifications, gamma": (lambda v: verifications([3, 3, 3], [1, 1, 1], v), WHOLE),
    "Tables, overhead": (lambda v: Tables(passes(), v), SECONDS),
    "Tables, most": (lambda v: Tables(passes(), most=v), COUNT),
    "Roofline, devices": (lambda v: Roofline(TARGET, DRAFTERS, CARD, devices=v), COUNT),
    "Roofline, overhead": (lambda v: Roofline(TARGET, DRAFTERS, CARD, overhead=v), SECONDS),
    "Roofline, dtype": (lambda v: Roofline(TARGET, DRAFTERS, CARD, dtype=v), ("fp8", "x", None)),
    "synthetic, tokens": (lambda v: texts(tokens=v), COUNT),
    "synthetic, prompt": (lambda v: texts(prompt=v), COUNT),
    "synthetic, spread": (lambda v: texts(spread=v), ABOVE),
    "synthetic, seed": (lambda v: texts(seed=v), WHOLE),
    "synthetic, acceptance": (lambda v: texts(distributions={"a": {"d": v}}), SHARE),
    "synthetic, costs": (lambda v: texts(costs={"d": v}), SECONDS),
    "synthetic, a drafter": (lambda v: texts(distributions={"a": {v: .5}}), ("e",)),
    "acceptance, requests": (lambda v: acceptance.recording("Alpaca", v, {}), COUNT),
    "acceptance, seed": (lambda v: acceptance.recording("Alpaca", 3, {}, v), WHOLE),
    "acceptance, scale": (lambda v: acceptance.recording("Alpaca", 3, {}, scale=v), ABOVE),
    "acceptance, spread": (lambda v: acceptance.recording("Alpaca", 3, {}, spread=v), SECONDS),
    "hits, h": (lambda v: acceptance.hits(v, .2, 3, rng()), SHARE),
    "hits, rho": (lambda v: acceptance.hits(.5, v, 3, rng()), SHARE),
    "hits, length": (lambda v: acceptance.hits(.5, .2, v, rng()), COUNT),
    **{f"spire.{call.__name__}, batch": (lambda v, call=call: call(spire.SPIRE, v, 512), COUNT)
       for call in (spire.multiplier, spire.cost_ratio, spire.passes)},
    **{f"spire.{call.__name__}, context": (lambda v, call=call: call(spire.SPIRE, 8, v), COUNT)
       for call in (spire.multiplier, spire.cost_ratio, spire.passes)},
    "spire, drafted": (lambda v: spire.multiplier(spire.SPIRE, 8, 512, drafted=v), COUNT),
    "spire, window": (lambda v: spire.multiplier(spire.SPIRE, 8, 512, window=v), WHOLE),
    "spire, hoi": (lambda v: spire.multiplier(spire.SPIRE, 8, 512, hoi=v), ABOVE),
    "spire, tau": (lambda v: spire.multiplier(spire.SPIRE, 8, 512, tau=v), ABOVE),
    "best_shape, nodes": (lambda v: best_shape([.5], v, 2), COUNT),
    "best_shape, depth": (lambda v: best_shape([.5], 2, v), COUNT),
    "best_shape, acceptance": (lambda v: best_shape([v], 2, 2), SHARE),
    "oracle_request, batch": (lambda v: oracle.oracle_request(texts(), {"d": 4}, batch=v), COUNT),
    "oracle_request, gammas": (lambda v: oracle.oracle_request(texts(), {"d": v}), (*WHOLE, None)),
    "oracle_request, no gamma": (lambda v: oracle.oracle_request(texts(), {v: 4}), ("e",)),
    "oracle_steps, batch": (lambda v: oracle.oracle_steps(texts(), {"d": 4}, batch=v), COUNT),
    "oracle_steps, gammas": (lambda v: oracle.oracle_steps(texts(), {"d": v}), (*WHOLE, None)),
    "chain_counts, gamma": (lambda v: oracle.chain_counts(texts(), 0, v), WHOLE),
    "split_time, seconds": (lambda v: split_time(v, .5, [.5, .5]), SECONDS),
    "split_time, shares": (lambda v: split_time(1.0, .5, [v]), SHARE),
    "steady": (lambda v: steady([v], [1.0]), SECONDS),
    "paper, names": (lambda v: paper.system(v), ("LLaMA", None)),
    "paper, cards": (lambda v: paper.system("LLaMA-7B", card=v), ("V200", None)),
    "paper, hypotheses": (lambda v: paper.system("LLaMA-7B", hypothesis=v), ("magic", None)),
    "averaged, seeds": (lambda v: paper.averaged(v, paper.serve, "Alpaca", "LLaMA-7B", "68M", requests=2), COUNT),
    "best_shares, batch": (lambda v: paper.best_shares(texts(), v), COUNT),
    "verification_latency, batches": (lambda v: paper.verification_latency("Alpaca", [v]), COUNT),
    "verification_latency, steps": (lambda v: paper.verification_latency("Alpaca", [2], steps=v), COUNT),
    "verification_memory, batches": (lambda v: paper.verification_memory("Alpaca", [v]), COUNT),
    **{f"Hardware, {name}": (lambda v, name=name: replace(CARD, **{name: v}), (NAN, -1.0, 0.0))
       for name in ("bandwidth", "memory", "link", "compute", "traffic", "keys")},
    **{f"Hardware, {name}": (lambda v, name=name: replace(CARD, **{name: v}), SECONDS)
       for name in ("launch", "latency", "turn", "reserve")},
    "Hardware, flops": (lambda v: replace(CARD, flops={"fp16": v}), (NAN, -1.0, 0.0)),
    **{f"Model, {name}": (lambda v, name=name: replace(TARGET, **{name: v}), COUNT)
       for name in ("layers", "width", "heads", "kv_heads", "head_dim", "ffn", "vocab")},
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("error")
def test_numbers_that_cannot_be_are_refused(name):
    call, wrong = REFUSED[name]
    for value in wrong:
        with pytest.raises(ValueError, match=r": |unknown|has no"):
            call(value)


def test_no_places_are_not_any_number_of_places():
    """0 was taken for no limit."""
    served = partial(paper.serve, "Alpaca", "LLaMA-7B", "spin", requests=6)
    assert served(places=0).served == {"none": served(places=0).request_steps}
    assert served().served != served(places=0).served


def test_a_recording_is_written_whole_or_not_at_all(tmp_path):
    texts().save(tmp_path / "r.npz")
    before = (tmp_path / "r.npz").read_bytes()
    with tiny.little_room(64), pytest.raises(OSError, match=f"cannot write {tmp_path / 'r.npz'}"):
        texts(tokens=99).save(tmp_path / "r.npz")
    assert (tmp_path / "r.npz").read_bytes() == before and len(list(tmp_path.iterdir())) == 1
