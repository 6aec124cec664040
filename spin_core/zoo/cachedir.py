"""How files get into the cache of fetched models without ever being half there.

Everything is made in a scratch folder inside the cache (same file system) and renamed into place, so a name
that exists is complete. One lock per family keeps two processes from doing the same work; the process that holds it
also removes the scratch folders that killed processes left behind.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spin_core import files

_SCRATCH = "scratch-"


class FetchError(RuntimeError):
    """A model could not be brought onto this machine; the message says what to do."""


class CorruptFileError(RuntimeError):
    """A cached or shipped file is not what it should be; the message names it and says what to do."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold ``folder`` (made if absent) for this process alone, with the scratch of dead processes removed.

    Raises FetchError for a folder that cannot be made or written to, and for a disk that is full.
    """
    try:
        with files.locked(folder, wait=lambda: say(f"another process is filling {folder}; waiting for it")):
            for stale in folder.glob(_SCRATCH + "*"):
                shutil.rmtree(stale, ignore_errors=True)
            yield
    except OSError as error:
        raise FetchError(f"cannot write to the cache folder {folder} ({error}). "
                         "Set SPIN_HOME to a folder on a disk with room, where you may write.") from error


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """An empty folder inside ``folder``, gone afterwards whatever happens. Call it with the lock held."""
    path = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: Path, size: int, digest: str, remedy: str) -> None:
    """Raise :class:`CorruptFileError` unless ``path`` has this size in bytes and this SHA-256."""
    if not path.is_file():
        raise CorruptFileError(f"{path} is {'no file' if path.exists() else 'missing'}. {remedy}")
    if (found := path.stat().st_size) != size:
        raise CorruptFileError(f"{path} is corrupt: {found:,} bytes instead of {size:,}. {remedy}")
    if (found := sha256(path)) != digest:
        raise CorruptFileError(f"{path} is corrupt: SHA-256 {found} instead of {digest}. {remedy}")


def sync(path: Path) -> None:
    """Wait until the file's bytes are on the disk, so that a rename cannot outlive them in a power cut."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def say(message: str) -> None:
    """One line of progress on stderr: the first load takes half a minute and should not look stuck."""
    print(f"spin_core: {message}", file=sys.stderr, flush=True)
