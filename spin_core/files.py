"""Files written for a user, which appear whole or not at all; the cache folder; folders that one process holds."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

_numbers = itertools.count()


def cache_dir() -> Path:
    """``$SPIN_HOME`` if set, else the platform's user cache for ``spin_core``. Not created here."""
    if home := os.environ.get("SPIN_HOME"):
        return Path(home).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("spin_core", appauthor=False))


def check_writable(path: str | Path) -> None:
    """Raise OSError for a file that can't be written: now, not after the work. Its folder is made."""
    path = _destination(path)
    if _is_device(path):        # opening a pipe would wait for its reader, and closing it end what that reads
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    path.open("a").close()
    if fresh:
        path.unlink()


@contextmanager
def writing(path: str | Path) -> Iterator[Path]:
    """The path of a new file to write; when the block ends without an error, its content is in ``path``.

    >>> with writing("numbers.txt") as part:
    ...     part.write_text("1, 2, 3")

    A regular file gets its whole content at once (or, after an error, keeps what it had), in its folder, which is made
    if absent. Links are followed, so they stay links. Devices and pipes are written through and never replaced. Raises
    OSError, naming ``path``, if it cannot be written: a full disk, a folder.
    """
    target = _destination(path)
    device = _is_device(target)
    folder = Path(tempfile.gettempdir()) if device else target.parent
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{target.stem}.{os.getpid()}-{next(_numbers)}.part{target.suffix}"
    try:
        yield part
        if device:              # /dev/stdout: go on where it is written to
            own = target.parent == Path(f"/proc/{os.getpid()}/fd")
            with open(part, "rb") as content, open(os.dup(int(target.name)) if own else target, "wb") as out:
                shutil.copyfileobj(content, out)
        else:
            if target.exists():
                shutil.copymode(target, part)
            os.replace(part, target)
    except (OSError, RuntimeError, SafetensorError) as error:       # torch's for a full disk is a RuntimeError
        raise OSError(f"cannot write {path}: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def save_json(path: str | Path, document: dict[str, Any]) -> None:
    """Write ``document`` as JSON (see :func:`writing`), with null for NaN and infinities, which JSON does not have."""
    text = json.dumps(_plain(document), indent=1, allow_nan=False) + "\n"
    with writing(path) as part:
        part.write_text(text, encoding="utf-8")


@contextmanager
def locked(folder: Path, wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold ``folder`` (made if absent) for this process alone. The lock ends with its process.

    Where another process holds it, call ``wait()`` once, and wait; without ``wait`` raise BlockingIOError, naming it.
    """
    import filelock

    folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        if wait is None:
            raise BlockingIOError(f"another process is writing into {folder}: wait for it, or choose another folder"
                                  ) from None
        wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _destination(path: str | Path) -> Path:
    """The file that a chain of links leads to. A link of /proc, where /dev/stdout leads, is a destination itself."""
    if not os.fspath(path):
        raise ValueError("an empty path names no file")
    path = Path(path)
    for _ in range(40):
        path = Path(os.path.realpath(path.parent)) / path.name
        if path.parts[:2] == ("/", "proc") or not path.is_symlink():
            return path
        path = path.parent / os.readlink(path)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _is_device(path: Path) -> bool:
    """Whether it is there and neither a regular file nor a folder."""
    return path.parts[:2] == ("/", "proc") or path.exists() and not path.is_file() and not path.is_dir()


def _plain(value: Any) -> Any:
    """The same with None for NaN and infinities."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
