"""The drafters' benchmark on the tiny family: its counts against the engine, its arithmetic by hand."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from spin_core.lab.bench import drafters as bench
from spin_core.lab.bench.answers import FOLLOW_UPS, Answers, answer
from spin_core.lab.distill.corpus import Shard
from spin_core.lab.distill.prompts import WORDS, PromptWriter
from spin_core.lab.distill.states import compute
from spin_core.lab.distill.table import make_table
from spin_core.draft import DraftTable
from spin_core.engine import Engine
from spin_core.request import SamplingParams
from spin_core.workloads import load_workload
from tests import tiny

PROMPTS = ["abcabcabc", "hello", "xyxyxyxy", "q"]


@pytest.fixture(scope="module")
def family():
    """The tiny family and a table that knows half of the answers."""
    plain = tiny.family(torch.float32)
    texts = Engine(plain, "none").generate(PROMPTS[:2], SamplingParams(max_new_tokens=24))
    shard = Shard.build([r.prompt_ids for r in texts], [r.output_ids for r in texts], [0.0] * 2)
    table = DraftTable("habits", **make_table([shard], tiny.VOCAB, 10**6), vocab_size=tiny.VOCAB)
    return tiny.TinyFamily(plain.target, {**plain.drafters, "habits": table})


@pytest.fixture(scope="module")
def answers(family) -> Answers:
    requests = Engine(family, "none", max_batch=4).generate(PROMPTS, SamplingParams(max_new_tokens=24))
    shard = Shard.build([r.prompt_ids for r in requests], [r.output_ids for r in requests], [0.0] * 4)
    return Answers(shard, compute(family.target, shard, family.vocab_size), ["a", "a", "b", "b"],
                   ["rewrite", "x", "y", "z"], ["other"] * 4)


@pytest.mark.parametrize("name", ["near", "subset", "same", "ngram", "habits", "ngram+near", "ngram+habits",
                                  "habits+subset", "ngram+habits+near"])
def test_chains_are_what_the_engine_does(family, answers, name):
    judged = bench.judge(family, name, answers)
    for gamma in (1, 3):
        for i, prompt in enumerate(PROMPTS):
            engine = Engine(family, name, gamma=gamma, max_batch=1, bf16=False)      # chains are counted in fp32
            engine.generate([prompt], SamplingParams(max_new_tokens=24))
            done = [(len(e.drafted), e.accepted) for e in engine.trace.events if e.kind == "step"]
            chain = judged.chains[gamma][i]
            assert [d for d, _ in chain] == [d for d, _ in done] and sum(a for _, a in chain[:-1]) == sum(
                a for _, a in done[:-1])


def test_a_model_is_scored_once_for_itself_and_for_compositions(family, answers, monkeypatch):
    names = ("near", "ngram+near", "ngram+habits+near")
    alone, scores = [bench.judge(family, name, answers) for name in names], bench.model_scores(family, answers)
    monkeypatch.setattr("spin_core.lab.bench.answers.score", None)
    assert [bench.judge(family, name, answers, scores) for name in names] == alone


def test_alpha_of_the_target_itself_is_one(family, answers):
    judged = bench.judge(family, "same", answers)
    assert judged.alpha == pytest.approx([1.0] * 4, abs=5e-3) and judged.agreement == [1.0] * 4


def test_seconds_and_shares_by_hand(answers):
    assert bench.seconds([(2, 2), (1, 0)], .1, [1.0, 1.2, 1.5]) == pytest.approx(.2 + 1.5 + .1 + 1.2)
    assert bench.seconds([(2, 2), (0, 0)], .1, [1.0, 1.2, 1.5], True) == pytest.approx(.1 + 1.5 + .1 + 1.0)
    assert bench.seconds([(2, 2), (1, 0)], .1, [1.0, 1.2, 1.5], [True, False], .01) == \
        pytest.approx(.01 + 1.5 + .1 + 1.2)
    good, bad = [(1, 1)] * 5, [(1, 0)] * 10
    mixed = [good, good, bad, good]
    def judged_as(looked: bool, chains) -> bench.Judged:
        return bench.Judged([.5] * 4, [.5] * 4, {g: chains for g in (1, 4)},
                            {g: [[looked] * len(c) for c in chains] for g in (1, 4)})

    judged = {"ngram": judged_as(True, mixed), "m": judged_as(False, [bad, good, good, bad])}
    report = bench.summarise(judged, answers, {"ngram": 0.0, "m": .2}, [1.0, 1.1])
    table = {(r["workload"], r["drafter"]): r for r in report.rows}
    assert table["a", "ngram"]["best_share"] == 1.0 and table["b", "m"]["best_share"] == .5
    assert table["mix", "ngram"]["tau1"] == pytest.approx(40 / 25)
    assert table["a", "ngram"]["speed_up"] == pytest.approx(20 / 11)


def test_error_of_a_ratio_covers_it():
    """About 95 % of the samples of requests have the true ratio in their interval."""
    rng, inside = np.random.default_rng(0), 0
    for _ in range(400):
        below = rng.integers(20, 60, 80)
        above = rng.poisson(1.5 * below)
        inside += abs(above.sum() / below.sum() - 1.5) < bench.ratio_error(above, below)
    assert .92 <= inside / 400 <= .98 and bench.ratio_error([3], [2]) == 0


def test_report(family, answers, monkeypatch):
    names = ["near", "habits", "ngram", "ngram+near", "ngram+habits"]
    judged = {n: bench.judge(family, n, answers) for n in names}
    served = SimpleNamespace(drafters={n: family.drafters[n] for n in names[:2]}, target=family.target,
                             vocab_size=family.vocab_size)
    timings, passes = bench.timings, {"target": 4.0, "near": 1.0}       # what is timed is timed, but by this clock
    monkeypatch.setattr(bench, "timings", lambda *args: {key: passes.get(key[0], 0.1) for key in timings(*args)})
    costs, verify = bench.measure_costs(served, 20, 1)
    assert verify[0] == 1.0 and costs["near"] > costs["ngram"] > 0
    assert costs["near"] == 0.25 and costs["ngram"] == 0.025
    report = bench.summarise(judged, answers, costs, verify)
    for workload in ("a", "b", "mix"):
        shares = {r["drafter"]: r["best_share"] for r in report.rows if r["workload"] == workload}
        assert shares.pop("ngram+near") is None and shares.pop("ngram+habits") is None
        assert sum(shares.values()) == pytest.approx(1)
    places = bench.agreement_by_place(served, bench.model_scores(served, answers), answers, 3)
    assert list(places) == ["near"] and len(places["near"]) == 3 and all(0 <= share <= 1 for share in places["near"])
    assert {"habits", "ngram+habits"} <= {*costs}
    tau = {r["drafter"]: r["tau4"] for r in report.rows if r["workload"] == "mix"}
    bars = {b.name.removeprefix("tokens per verification at gamma 4, "): b.value for b in report.bars}
    cheap = max(("habits", "ngram", "ngram+habits"), key=tau.get)       # lookups have c = .025, models and the rest .25
    best = max(tau, key=tau.get)
    assert bars["smallest model (near)"] == bars["strongest model (near)"] == tau["near"]
    assert bars[f"best drafter with c <= .06 ({cheap})"] == tau[cheap] and bars[f"best drafter ({best})"] == tau[best]


class Chatting(tiny.TinyFamily):
    """A tiny family that reads messages: the last words of the conversation."""

    def encode(self, prompt) -> list[int]:
        return [ord(c) % tiny.VOCAB for m in prompt for c in f"{m['role'][0]}{m['content'][-9:]}"]


def test_a_file_in_a_published_format_is_answered_turn_by_turn(family, tmp_path):
    path = tmp_path / "question.jsonl"
    path.write_text("".join(json.dumps({"question_id": n, "category": "math", "turns": ["What is 2 + 2?", f"And {n}?"]})
                            + "\n" for n in range(81, 84)))
    served = Chatting(family.target, family.drafters)
    one, two = (answer(served, None, 12, path, turns) for turns in (1, 2))
    assert len(one.workloads) == 3 and len(two.workloads) == 6 and set(two.categories) == {"math"}
    assert set(two.kinds) == {"facts"}
    first, second = two.shard.sequence(0), two.shard.sequence(3)
    text = served.decode(first[1])
    assert second[0] == served.encode([{"role": "user", "content": "What is 2 + 2?"},
                                       {"role": "assistant", "content": text}, {"role": "user", "content": "And 81?"}])


def test_second_turns_are_held_out():
    """They are none of those that drafters learn from, and make the test split 400 requests and more."""
    assert not set(FOLLOW_UPS) & set(WORDS.follow_ups) and len(set(FOLLOW_UPS)) == len(FOLLOW_UPS)
    assert 2 * len(load_workload("mix", "test")) >= 400
    writer = PromptWriter(5)
    fresh = {writer.fresh()[0]["content"] for _ in range(3000)}
    assert not fresh & {p.messages[-1]["content"] for p in load_workload("mix", "test")}
