"""The target over two processes on loopback: the logits and texts of one process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch

from spin_core.engine import Engine
from spin_core.request import SamplingParams
from spin_core.runtime import ModelRunner, tensor_parallel
from spin_core.zoo import huggingface

PROMPTS = [[1, 4, 9], [7], list(range(20)), [5, 5]]
PARAMS = [SamplingParams(max_new_tokens=12, stop_ids=()),
          *(SamplingParams(temperature=1.0, top_k=k, seed=k, max_new_tokens=12, stop_ids=()) for k in (0, 5, 9))]

SCRIPT = """
import json, os, sys
sys.path[:0] = {paths!r}
import torch
import test_tensor_parallel as here

family, parts = here.sharded_family(sys.argv[1])
runner = here.ModelRunner(family.target, 2, 64)
logits = runner.forward([0, 1], [3, 2], [1, 4, 9, 7, 7], [0, 1, 2, 3, 4])
out = dict(parts=parts, heads=runner.cache.k[0].shape[1], logits=logits.tolist(), texts=here.texts(family))
with open(os.path.join(sys.argv[1], f"rank{{os.environ['RANK']}}.json"), "w") as file:
    json.dump(out, file)
torch.distributed.destroy_process_group()
"""


def sharded_family(folder: str):
    """The tiny family with its target loaded by this process's share, and over how many processes it is."""
    target = huggingface.load_model(folder, "target", torch.device("cpu"), torch.float64, tensor_parallel.processes())
    family = tiny.TinyFamily(target, {"near": tiny.family().drafters["near"]})
    return family, tensor_parallel.parts_of(target)


def texts(family) -> list[list[int]]:
    engine = Engine(family, "near", 3, max_batch=3, prefill_chunk=8)
    return [r.output_ids for r in engine.generate(PROMPTS, PARAMS)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_two_processes_compute_what_one_does(tmp_path):
    tiny.family().target.save_pretrained(tmp_path)
    paths = [str(Path(__file__).parents[n]) for n in range(3)]
    (tmp_path / "program.py").write_text(SCRIPT.format(paths=paths))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
               "--master-port", str(free_port()), str(tmp_path / "program.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240,
                          env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads((tmp_path / f"rank{i}.json").read_text()) for i in range(2)]
    runner = ModelRunner(tiny.family().target, 2, 64)
    alone = runner.forward([0, 1], [3, 2], [1, 4, 9, 7, 7], [0, 1, 2, 3, 4])
    for rank in ranks:
        assert rank["parts"] == 2 and rank["heads"] == 1, "each holds one of the two kv heads"
        torch.testing.assert_close(torch.tensor(rank["logits"], dtype=torch.float64), alone, rtol=0, atol=1e-12)
        assert rank["texts"] == texts(tiny.family())
    assert ranks[0]["logits"] == ranks[1]["logits"], "to the last bit, or the processes might disagree"


def test_without_torchrun_there_is_one_process(monkeypatch):
    assert tensor_parallel.sharding(1) == {} and tensor_parallel.speaks()
    with pytest.raises(ValueError, match="needs as many processes, and there are 1: start with torchrun"):
        tensor_parallel.sharding(2)
    model = tiny.llama()
    monkeypatch.setattr(model, "_tp_size", 3, raising=False)
    with pytest.raises(ValueError, match="4 attention heads cannot be shared out to 3 processes"):
        tensor_parallel.local_heads(model, 4)
