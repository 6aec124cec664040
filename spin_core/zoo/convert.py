"""De-quantise a GGUF file once and save it as a safetensors folder that loads in a blink.

Left quantised, the model would be de-quantised again in every forward pass (2-3 tokens/s); as fp32 it decodes
at full speed and the file can be mapped into memory as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .cachedir import CorruptFileError, check_file, sha256, sync
from .huggingface import quiet
from .registry import Builtin

FOLDER = "fp32"
MANIFEST = "manifest.json"
FORMAT = 1          # raise it when what this file writes changes; older folders are then made again


def convert(source: Path, target: Path, family: Builtin) -> None:
    """Write ``target``: config, generation config, tokenizer with chat template, fp32 weights, manifest."""
    import torch
    import transformers

    with quiet():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=torch.float32, local_files_only=True,
            quantization_config=transformers.GgufConfig(dequantize=True))
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            source.parent, gguf_file=source.name, local_files_only=True)
        if not tokenizer.chat_template:
            raise RuntimeError(f"{source} carries no chat template")
        target.mkdir()
        with named_errors(target):
            model.save_pretrained(target)        # tied embeddings are written once
            tokenizer.save_pretrained(target)
    write_manifest(target, family)


@contextmanager
def named_errors(target: Path) -> Iterator[None]:
    """Say where the disk was full: the library's own error names no file."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise OSError(f"cannot write {target}: {error}") from error


def write_manifest(folder: Path, family: Builtin) -> None:
    """Record what the folder was made from, with what, and the sum of each of its files."""
    import transformers

    files = {}
    for path in sorted(folder.iterdir()):
        sync(path)
        files[path.name] = {"size": path.stat().st_size, "sha256": sha256(path)}
    manifest = {"format": FORMAT, "source": {"file": family.file_name, "sha256": family.sha256},
                "transformers": transformers.__version__, "files": files}
    path = folder / MANIFEST
    path.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    sync(path)


def read_manifest(folder: Path, remedy: str) -> dict:
    """The manifest of a converted folder; CorruptFileError if it cannot be read or holds something else."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        files = {Path(name).name: {"size": int(entry["size"]), "sha256": str(entry["sha256"])}
                 for name, entry in manifest["files"].items()}
        return {"format": manifest["format"], "source": str(manifest["source"]["sha256"]), "files": files}
    except FileNotFoundError:
        raise CorruptFileError(f"{path} is missing. {remedy}") from None
    except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"{path} is corrupt: {type(error).__name__} {error}. {remedy}") from error


def outdated(folder: Path, family: Builtin) -> bool:
    """Whether the folder was made from another source or in another format. A corrupt one is not outdated."""
    try:
        manifest = read_manifest(folder, "")
    except CorruptFileError:
        return False
    return manifest["format"] != FORMAT or manifest["source"] != family.sha256


def check(folder: Path, remedy: str) -> None:
    """Check size and SHA-256 of every file; CorruptFileError names the first bad one.

    All 538 MB are hashed at every load: with the SHA instructions of today's CPUs that takes well under a
    second, and it brings the file into memory, which the load needs anyway.
    """
    for name, entry in read_manifest(folder, remedy)["files"].items():
        check_file(folder / name, entry["size"], entry["sha256"], remedy)
