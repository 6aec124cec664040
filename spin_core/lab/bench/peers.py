"""The whole system against the peers: the same models, the same prompts, one process, interleaved.

Contenders decode one after the other, workload by workload, and our engines among themselves in turns of a few steps,
since they are close. A ratio compares two contenders on what both have decoded in the same round; the table shows
medians over rounds. The prompts fill the batch ``--waves`` times, and a request that ends makes room for the next, as
in a service: a single batch would last as long as its slowest request, whatever the others gain. Every contender
decodes a few tokens first, to warm up; those that choose drafters a batch of other prompts of the test split, because
SPIN learns while it serves (drafters learned from answers of the train split: there they are too good). ``same_text``
is the share of greedy texts that equal those of ``generate``: in fp32 products of other shapes round differently, and a
near tie may then fall the other way.

Four cases share ``--budget-seconds``: batch 1 and 8, greedy and temperature 1. Each has one round at least, and
further ones while there is time. Engines live through all rounds of a case, as a service would: what SPIN learns it
keeps. A case that breaks off, by an error or by hand, costs no finished round: the report holds what was measured.
``--json`` is written after every case, and ``--resume`` goes on behind the last whole one.
"""

import argparse
import json
import re
import time
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from spin_core import zoo
from spin_core.draft import DraftTable
from spin_core.draft.pool import is_fed
from spin_core.engine import Engine
from spin_core.files import save_json
from spin_core.lab.bench import Bar, Report, above_zero, finite, positive
from spin_core.lab.bench import contenders as how, elsewhere
from spin_core.lab.bench.answers import is_lookup
from spin_core.lab.bench.names import (ASSISTED, BASELINE, CONTINUOUS, FIXED, FLASHSPEC, MORE, PACKED, PLAIN, RUNGS,
                                       SPIN)
from spin_core.lab.bench.rounds import (Contender, Tokens, drafters_used, in_turns, interval, of_trace, ratio, ratios,
                                        same_text, serve)
from spin_core.lab.results.stored import stored
from spin_core.lab.simulate.oracle import Planned, oracle_request, oracle_steps
from spin_core.lab.simulate.recording import MAX_GAMMA, Recording
from spin_core.lab.simulate.replay import replay
from spin_core.request import SamplingParams
from spin_core.select import NONE, make
from spin_core.select.assigner import DEFAULT_GAMMA, DEFAULT_GAMMA_MODEL
from spin_core.workloads import NAMES, load_workload

DESCRIPTION = "the whole system against transformers (generate, assisted, continuous batching) and flashspec"
TURN = 32               # steps: at the end of a turn a pipeline runs empty, which costs time
BROKEN = "runs to its end"      # the bar of a run that did not
SLOW = "mix"            # contenders that are several times slower decode this workload only


def add_arguments(parser) -> None:
    parser.add_argument("--batch", type=positive, nargs="+", default=[1, 8], help="batch sizes (default 1 8)")
    parser.add_argument("--temperature", type=finite, nargs="+", default=[0.0, 1.0], help="(default 0 1)")
    parser.add_argument("--workloads", nargs="+", default=list(NAMES), help=f"(default {' '.join(NAMES)})")
    parser.add_argument("--prompts", type=positive, default=2, help="prompts of each workload at least (default 2)")
    parser.add_argument("--waves", type=positive, default=2, help="batches of prompts of each workload (default 2)")
    parser.add_argument("--max-new-tokens", type=positive, default=32)
    parser.add_argument("--fixed", type=fixed_drafter, nargs="+", default=["default"], metavar="default|all|NAME:GAMMA",
                        help="fixed drafters (default: the family's and ngram, each at its best stored gamma; all: "
                             "ngram+NAME of the family's too)")
    parser.add_argument("--arms", nargs="+", default=[], metavar="NAME",
                        help="more arms for a second SPIN, on greedy text: sparse:target:1/2, vote, tree:A,B:2,1")
    parser.add_argument("--assistant", metavar="NAME", help="drafter that peers use (default: the first they can use); "
                                                            f"flashspec among them needs {how.INSTALL}")
    parser.add_argument("--peer", type=elsewhere.peer, nargs="+", default=[], metavar="NAME=PYTHON",
                        help="peers in environments of their own: vllm=PYTHON, llama.cpp=PYTHON")
    parser.add_argument("--budget-seconds", type=above_zero, default=400.0, help="for all cases together (default 400)")
    parser.add_argument("--plain", action="store_true",
                        help="only our plain decoding and SPIN: the gain by batch, such as --batch 1 2 4 8 16 32")
    parser.add_argument("--resume", action="store_true", help="keep the whole cases of an earlier run in --json")
    parser.add_argument("--rounds", type=positive, default=1, help="rounds of a case at least (default 1)")
    parser.add_argument("--device", default="cpu")


def fixed_drafter(text: str) -> str:
    """The type of ``--fixed``."""
    if text not in ("default", "all") and not re.fullmatch(r".+:[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is neither default nor all nor NAME:GAMMA, such as ngram:4")
    return text


def run(args) -> Report:
    whole = Report("plain" if args.plain else "peers", [])       # of a name the newest is read
    try:
        measure(args, whole)
    except (Exception, KeyboardInterrupt) as error:     # what was measured is kept, if there is anything
        if not whole.rows:
            raise
        whole.notes.append(f"broke off: {type(error).__name__}: {str(error)[:300]}")
        whole.bars.append(Bar(BROKEN, 0.0, ">= 1"))
    whole.notes += ["the best fixed drafter is chosen by the rounds that report it",
                    "'packed products' is transformers' own loop over the products that our runner uses: what it gains "
                    "over plain generate is due to the products alone",
                    "ceilings: the stored recording of this pool replayed, knowing the future; vs_plain on its costs"]
    if args.arms:
        whole.notes.append(f"{MORE}: {', '.join(args.arms)}")
    return whole


def measure(args, whole: Report) -> None:
    """Run case by case, and add to ``whole`` what each came to."""
    family = zoo.load("smollm2", device=args.device)
    kept = resumed(Path(args.json), whole) if args.resume and args.json and Path(args.json).exists() else ()
    cases = [(batch, temperature) for temperature in args.temperature for batch in args.batch
             if (batch, temperature) not in kept]
    end = time.monotonic() + args.budget_seconds
    for done, (batch, temperature) in enumerate(cases):
        stop = time.monotonic() + max(0.0, end - time.monotonic()) / (len(cases) - done)
        count = max(args.prompts, args.waves * batch)
        prompts = {name: [family.encode(p.messages) for p in load_workload(name, "test", limit=count)]
                   for name in args.workloads}
        measured = [tokens for texts in prompts.values() for tokens in texts]
        others = (family.encode(p.messages) for p in load_workload(SLOW, "test"))
        before = list(islice((tokens for tokens in others if tokens not in measured), max(8, batch)))
        here = field_of(family, batch, temperature, args)
        params = SamplingParams(temperature, max_new_tokens=args.max_new_tokens, seed=0)
        try:
            compare(here, prompts, before, params, stop, whole.notes, args.rounds)
        finally:
            whole.notes += elsewhere.close(here)
            if rounds := len({number for c in here for number, _ in c.cells}):
                plain = next(c for c in here if c.name == PLAIN)
                whole.rows += [{"batch": batch, "temperature": temperature} | row(c, here[0], plain, temperature)
                               for c in here if c.cells]
                whole.bars += bars(here, batch, temperature)
                whole.notes.append(f"{case(batch, temperature)}: {rounds} rounds of {sum(map(len, prompts.values()))} "
                                   f"prompts, at most {args.max_new_tokens} tokens each")
        if args.json:
            save_json(args.json, whole.as_dict())
    if not args.plain:
        whole.rows += [{"batch": batch, "temperature": 0.0} | row for batch in args.batch for row in ceilings(batch)]


def resumed(path: Path, whole: Report) -> set[tuple[int, float]]:
    """Put the whole cases of an earlier report into ``whole``; which these are, as (batch, temperature)."""
    found = json.loads(path.read_text("utf-8"))
    rows = [row for row in found["rows"] if not row["contender"].startswith("ceiling")]
    cases = list(dict.fromkeys((row["batch"], row["temperature"]) for row in rows))
    if any(bar["name"] == BROKEN for bar in found["bars"]):
        cases.pop()
    names = tuple(case(*one) for one in cases)
    whole.rows += [row for row in rows if (row["batch"], row["temperature"]) in cases]
    whole.bars += [Bar(bar["name"], bar["value"], bar["target"]) for bar in found["bars"]
                   if bar["name"].endswith(tuple(f", {name}" for name in names))]
    whole.notes += [note for note in found["notes"] if note.startswith(tuple(f"{name}: " for name in names))]
    return set(cases)


def case(batch: int, temperature: float) -> str:
    """A case's name in bars and notes."""
    return f"batch {batch}, " + (f"temperature {temperature:g}" if temperature else "greedy")


def compare(here: list[Contender], prompts: Mapping[str, Tokens], before: Tokens, params: SamplingParams, stop: float,
            notes: list[str], least: int = 1) -> None:
    """Let all contenders decode all ``prompts``, round by round, until time ``stop``, but in ``least`` rounds. Engines
    with a selector serve ``before`` first. A peer that raises is left out, and a note says why; any other error leaves
    whole rounds only."""
    ours = [c for c in here if c.engine]
    for contender in ours:
        in_turns([contender.engine], before if contender.engine.selection else before[:1], params)
        contender.engine.trace.events.clear()
    number, took = 0, 0.0
    while number < least or time.monotonic() + took < stop:
        began = time.monotonic()
        try:
            for workload, texts in prompts.items():
                decode(here, workload, texts, params, number, notes)
        except BaseException:
            for contender in here:
                contender.cells = {cell: what for cell, what in contender.cells.items() if cell[0] < number}
            raise
        took = time.monotonic() - began
        number += 1


def decode(here: list[Contender], workload: str, texts: Tokens, params: SamplingParams, number: int,
           notes: list[str]) -> None:
    """A workload of round ``number``."""
    for peer in [c for c in here if not c.engine and c.only in (None, workload)]:
        try:
            if not peer.cells:              # it warms up
                peer.decode([text[-16:] for text in texts[:1]])
            start = time.perf_counter()
            peer.record(number, workload, peer.decode(texts), time.perf_counter() - start)
        except Exception as error:      # a peer that can't run here must not take the others down
            if peer.name == BASELINE:
                raise
            here.remove(peer)
            notes.append(f"{peer.name} did not run here: {type(error).__name__}: {str(error)[:160]}")
    serve([c for c in here if c.engine], number, workload, texts, params, TURN)


def row(contender: Contender, baseline: Contender, plain: Contender, temperature: float) -> dict:
    """A line of the table. ``over_plain``: over our plain decoding, with the 95 % interval over the rounds."""
    low, high = interval(ratios(contender, plain))
    out = {"contender": contender.name, "drafter": contender.drafter, "gamma": contender.gamma,
           "tokens_per_s": contender.rate()}
    if baseline.name == BASELINE:
        out["vs_generate"] = ratio(contender, baseline)
    out |= {"over_plain": ratio(contender, plain), "over_plain_low": low, "over_plain_high": high}
    out |= {workload: contender.rate([c for c in contender.cells if c[1] == workload])
            for workload in dict.fromkeys(w for _, w in contender.cells)}
    if temperature == 0:
        out["same_text"] = same_text(contender, baseline)
    if contender.engine:
        out |= of_trace(contender.engine.trace)
        if contender.engine.selection:
            out["drafters"] = drafters_used(contender.engine.trace)
    return out


def bars(here: list[Contender], batch: int, temperature: float) -> list[Bar]:
    """What was promised of the whole system: on greedy text, and at temperature 1 that it does not lose."""
    of = {c.name: c for c in here}
    spin, where = of[SPIN], case(batch, temperature)
    singles = [c for c in here if c.name == FIXED and c.cells]
    out = [Bar(f"SPIN over our plain decoding, {where}", ratio(spin, of[PLAIN]), ">= 0.98")]
    if MORE in of:
        out.append(Bar(f"SPIN with more arms over SPIN, {where}", ratio(of[MORE], spin), ">= 0.98"))
    if temperature or BASELINE not in of:
        return out
    best = max(singles, key=lambda c: c.rate())
    out.append(Bar(f"SPIN over {BASELINE}, {where}", ratio(spin, of[BASELINE]), f">= {1.6 if batch == 1 else 1.3}"))
    out.append(Bar(f"SPIN over the best fixed drafter ({best.drafter}, gamma {best.gamma}), {where}", ratio(spin, best),
                   ">= 0.97"))
    for peer in (CONTINUOUS, ASSISTED):
        if peer in of:
            out.append(Bar(f"SPIN over {peer}, {where}", ratio(spin, of[peer]), ">= 1.0"))
    same = [c for c in singles if ASSISTED in of and (c.drafter, c.gamma) == (of[ASSISTED].drafter, of[ASSISTED].gamma)]
    out += [Bar(f"ours over {ASSISTED}, both with {c.drafter}, gamma {c.gamma}, {where}", ratio(c, of[ASSISTED]),
                ">= 1.1") for c in same]
    return out


# ---- the contenders


def field_of(family, batch: int, temperature: float, args) -> list[Contender]:
    """The contenders of one case; at temperature 1 those that matter most."""
    greedy = temperature == 0
    name = args.assistant or next((n for n, d in family.drafters.items() if usable(d)), None)
    out = [] if args.plain else others(family, name, batch, temperature, args)

    def mine(title: str, *drafter, **options) -> None:
        engine = Engine(family, *drafter, max_batch=batch, **options)
        out.append(Contender(title, None, *drafter, engine=engine))

    mine(PLAIN, "none", 0)
    if not args.plain:
        fixed = singles(family, args.fixed, batch)
        if greedy and batch == 1 and name is not None and (name, 2) not in fixed:
            fixed.append((name, 2))
        for drafter, gamma in fixed:
            mine(FIXED, drafter, gamma)
        if greedy and batch > 1:
            for title, options in RUNGS.items():
                mine(title, *(() if "selector" in options else fixed[0]), **options)
    mine(SPIN)
    if greedy and args.arms:
        mine(MORE, arms=[*family.drafters, "ngram", *args.arms])
    if greedy and not args.plain:
        mine("ours, spin-full", selector="spin-full")
    torch.manual_seed(0)
    return out


def others(family, name: str | None, batch: int, temperature: float, args) -> list[Contender]:
    """The peers of a case, the baseline first; ``name``: the drafter that they use."""
    distribution, greedy = (args.max_new_tokens, temperature), temperature == 0
    packed = how.packed(family.target) if greedy else None
    out = [Contender(BASELINE, how.generate(family, family.target, batch, *distribution))]
    if packed is not None:
        out.append(Contender(PACKED, how.generate(family, packed, batch, *distribution)))
    if batch > 1:
        out.append(Contender(CONTINUOUS, how.continuous(family, *distribution), only=SLOW))
    elif name is not None:
        helper = how.assistant(family.drafters[name], family.target)
        out.append(Contender(ASSISTED, how.assisted(family, family.target, helper, 2, *distribution), name, 2,
                             only=None if greedy else SLOW))
        out.append(Contender(FLASHSPEC, how.flashspec(family, helper, *distribution), name, only=SLOW))
    return out + elsewhere.contenders(args.peer, family.stop_ids, batch, *distribution)


def usable(drafter) -> bool:
    """May a peer draft with it? Not where it reads the target's states, nor with what is no model."""
    return not isinstance(drafter, DraftTable) and not is_fed(drafter)


def singles(family, asked: list[str], batch: int) -> list[tuple[str, int]]:
    """The fixed drafters that are ``asked`` for as in ``--fixed``: (name, gamma), each once."""
    pool = {"default": [*family.drafters, "ngram"]}
    pool["all"] = [*pool["default"], *(f"ngram+{name}" for name in family.drafters)]
    out = []
    for text in asked:
        name, _, gamma = text.rpartition(":")
        usual = {n: DEFAULT_GAMMA if is_lookup(family, n) else DEFAULT_GAMMA_MODEL for n in pool.get(text, ())}
        out += [(n, best_gamma(n, batch) or length) for n, length in usual.items()] if usual else [(name, int(gamma))]
    return list(dict.fromkeys(out))


@lru_cache
def best_gamma(name: str, batch: int, requests: int = 48) -> int | None:
    """The gamma that is best for a drafter on the mix: at batch 1 as ``bench drafters`` has stored it, in a batch as
    the stored recording replays. None where the drafter is not known there."""
    if batch == 1:
        found = stored("drafters", lambda row: (row["workload"], row["drafter"]) == ("mix", name))
        return found[0].rows[0]["best_gamma"] if found else None
    recording = Recording.load()
    if name not in recording.arms:
        return None
    recording = recording.take(np.arange(min(requests, len(recording))))
    return max(range(1, MAX_GAMMA + 1), key=lambda gamma: replay(
        recording, make(f"fixed:{name}", [name], gamma=gamma), batch=batch).goodput)


def ceilings(batch: int, requests: int = 48) -> list[dict]:
    """What a policy could reach that knew what will be accepted (arXiv 2601.11580), on the stored recording."""
    stored = Recording.load()
    recording = stored.only(stored.drafters).take(np.arange(min(requests, len(stored))))
    gammas = {arm: 4 if arm in recording.lookups else 2 for arm in recording.arms}
    plain = replay(recording, make(f"fixed:{NONE}", ()), batch=batch).goodput
    plans = oracle_request(recording, gammas, batch=batch)
    runs = {"ceiling: the best drafter of every request":
            replay(recording, Planned([*recording.arms, NONE], plans, gamma=gammas), batch=batch),
            "ceiling: the best drafter at every step": oracle_steps(recording, gammas, batch=batch),
            "ceiling: drafts exactly what is accepted": oracle_steps(recording, None, batch=batch)}
    return [{"contender": name, "vs_plain": run.goodput / plain,
             "tokens_per_verification": run.tokens / len(run.request)} for name, run in runs.items()]
