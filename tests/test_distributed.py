"""One engine over 2 and over 4 processes on loopback: the texts of one process, and what a death leaves."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from functools import cache

import distributed_cases as cases
import pytest
import tiny

from spin_core import distributed
from spin_core.draft import pool
from spin_core.engine import Engine
from spin_core.lab.bench.distributed import environments
from spin_core.runtime import ranks

GROUPS = {"two share the target": (2, 2), "two share the target and two draft": (4, 2)}


@pytest.fixture(scope="module", params=GROUPS)
def group(request, tmp_path_factory) -> tuple[dict, int, int]:
    """What the ranks of one group found, their number, and how many share the target. All settings run in one group."""
    processes, parts = GROUPS[request.param]
    folder = tmp_path_factory.mktemp("ranks")
    tiny.family().target.save_pretrained(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))       # for the process that the ranks are forked from
        forks = multiprocessing.get_context("forkserver")
        forks.set_forkserver_preload(["distributed_cases"])         # imported once for all of them
        running = [forks.Process(target=cases.rank, args=(str(folder), environ, parts), daemon=True)
                   for environ in environments(processes)]
        for process in running:
            process.start()
    running[0].join(420)
    for process in running:
        process.kill()
    assert (folder / "found.json").exists(), "\n\n".join(file.read_text()[-3000:] for file in folder.glob("failed*"))
    return json.loads((folder / "found.json").read_text()), processes, parts


@cache
def alone(setting: str) -> list[list[int]]:
    """What one process serves."""
    family = tiny.TinyFamily(tiny.family().target, {name: tiny.family().drafters[name] for name in ("near", "subset")})
    return cases.cancelled(family) if setting == "cancelled" else cases.serve(family, setting)


def test_texts_are_those_of_one_process(group):
    """For every selector and pipeline, trees, sparse caches, votes, capacities, and with cancellations."""
    found = group[0]
    assert len(found["texts"]) >= 10 and [name for name, texts in found["texts"].items() if texts != alone(name)] == []
    assert found["cancelled"] == alone("cancelled")


def test_ranks_without_a_part_of_the_target_draft(group):
    found, processes, parts = group
    homes = list(range(parts, processes))
    assert found["places"] == {name: homes[i % len(homes)] for i, name in enumerate(("near", "subset")) if homes}


def test_a_dead_rank_is_named_in_time_and_loses_no_finished_request(group):
    found, processes, parts = group
    for rank, after in found["killed"].items():
        drafts = int(rank) >= parts
        assert after["seconds"] < 20
        assert after["kept"] == alone("selector spin")[:2]
        if drafts:
            assert after["errors"] == [None] * len(cases.PROMPTS), "a drafter's death costs speed alone"
        else:
            assert after["raised"].startswith("RankLost: ") and f"rank {rank}, which holds a part" in after["raised"]
            assert all(f"rank {rank}" in (error or "") for error in after["errors"]) and f"rank {rank}" in after["late"]


def test_without_torchrun_there_is_one_process(monkeypatch):
    family = tiny.family()
    assert ranks.sharding(1) == {} and distributed.join(family) is family
    with pytest.raises(ValueError, match="needs as many processes, and there are 1: start with torchrun"):
        ranks.sharding(2)
    model = tiny.llama()
    monkeypatch.setattr(model, "_tp_size", 3, raising=False)
    with pytest.raises(ValueError, match="4 attention heads cannot be shared out to 3 processes"):
        ranks.check_heads(model, 4)
    with pytest.raises(ValueError, match="pass the family through spin_core.distributed.join first"):
        Engine(tiny.TinyFamily(model, {}))
    with pytest.raises(ValueError, match="'sparse:target' drafts with the target, which is spread over 3 processes"):
        pool.build("sparse:target", tiny.TinyFamily(model, {}), 1, 32, None)
