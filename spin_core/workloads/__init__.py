"""Prompts to run: four named sets written for this project, and any file or hub data set.

>>> from spin_core.workloads import load_workload
>>> len(load_workload("mix", split="test"))
216
>>> load_workload("chat", split="train", limit=1).prompts[0].messages[0]["role"]
'user'

The named sets live beside this file, one line of JSON for each prompt, in two forms::

    {"id": "instructions-001", "category": "code", "split": "train", "prompt": "..."}
    {"id": "chat-001", "category": "howto", "split": "test",
     "messages": [{"role": "user", "content": "..."}, {"role": "assistant", ...}, {"role": "user", ...}]}

The splits are part of the files and never change: drafters train on "train", reported numbers are measured on
"test". Begin with ``prompt``; ``formats`` reads files of prompts, and is where a new form of file is added.
"""

import os
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from .formats import parse_records, read_file
from .prompt import Prompt, Workload, WorkloadError

__all__ = ["NAMES", "SETS", "Prompt", "Workload", "WorkloadError", "load_workload"]

SETS = ("instructions", "personas", "chat")
NAMES = (*SETS, "mix")


def load_workload(name_or_path: str | os.PathLike[str], split: str | None = None,
                  limit: int | None = None, seed: int | None = None) -> Workload:
    """The prompts of a named set, of a file, or of a data set on the Hugging Face hub.

    ``name_or_path``: one of :data:`NAMES`; else the path of a JSONL or JSON file in any form that
    :mod:`spin_core.workloads.formats` reads; else, as ``owner/name``, a hub data set (needs the ``datasets`` library
    and a reachable hub). ``split``: keep only its prompts. ``seed``: shuffle (None keeps the file's order). ``limit``:
    keep at most so many, after the split and the shuffle.

    Raises WorkloadError for an unknown name (listing the known ones), a bad line (naming file and line), an empty file,
    an absent split; OSError for a file that cannot be read.
    """
    workload = _load(name_or_path)
    if split is not None:
        workload = workload.split(split)
    if seed is not None:
        workload = workload.shuffled(seed)
    return workload if limit is None else workload.first(limit)


def _load(source: str | os.PathLike[str]) -> Workload:
    name, path = os.fspath(source), Path(source)
    if name in SETS:
        return Workload(name, read_file(Path(__file__).with_name(f"{name}.jsonl")))
    if name == "mix":
        return Workload(name, tuple(_mix()))
    if path.exists():
        return Workload(path.stem, read_file(path))
    if path.suffix in (".json", ".jsonl") or path.is_absolute() or not isinstance(source, str):
        raise FileNotFoundError(f"no such workload file: {name}")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return _load_hub(name)
    raise WorkloadError(f"unknown workload {name!r}: the named ones are {', '.join(NAMES)}; the path of a "
                        ".jsonl or .json file and a hub name owner/name are taken too")


def _mix() -> Iterator[Prompt]:
    """The three sets in turn, instructions, personas, chat, and so on: first the train prompts, then the
    test prompts, each in its set's order and with its set's split. Any stretch of the mix holds the three in
    equal parts."""
    sets = [_load(name) for name in SETS]
    for split in ("train", "test"):
        yield from chain.from_iterable(zip(*(s.split(split) for s in sets), strict=True))


def _load_hub(name: str) -> Workload:
    try:
        import datasets
    except ImportError as error:
        raise WorkloadError(f"{name!r} is no file here, and fetching it from the Hugging Face hub needs the "
                            f"library `datasets`, which cannot be imported ({error}): pip install datasets, "
                            "or give the path of a downloaded copy") from error
    try:
        data = datasets.load_dataset(name)
    except Exception as error:  # the library has no common base class for its errors and those of the network
        raise WorkloadError(f"cannot fetch {name!r} from the Hugging Face hub ({type(error).__name__}: "
                            f"{error}). Is the name right and the hub reachable? A downloaded copy can be "
                            "given by its path") from error
    prompts = [prompt for part in data for prompt in parse_records(
        ((f"{name}[{part}] row {number}", row) for number, row in enumerate(data[part], start=1)),
        workload=name, prefix=f"{name}-{part}", source=f"{name}[{part}]", split=part)]
    return Workload(name, tuple(prompts))
