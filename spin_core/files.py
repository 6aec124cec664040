"""Files written for a user, which appear whole or not at all; the cache folder; folders that one process holds."""

import errno
import glob
import itertools
import json
import math
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_numbers = itertools.count()
_fifos: dict[Path, int] = {}        # descriptors of FIFOs that were checked and are still to be written


def cache_dir() -> Path:
    """``$SPIN_HOME`` if set, else the platform's user cache for ``spin_core``. Not created here."""
    if home := os.environ.get("SPIN_HOME"):
        return Path(home).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("spin_core", appauthor=False))


def check_writable(path: str | Path) -> None:
    """Raise OSError for a file that can't be written: now, not after the work. Its folder is made."""
    path = _destination(path)
    if stat.S_ISFIFO(_kind(path)) and path.parts[:2] != ("/", "proc"):
        if path not in _fifos:      # kept open: closing it would end its reader's input
            _fifos[path] = _open_node(path)
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
    if absent. Links are followed, so they stay links. Devices and FIFOs are written through and never replaced. Raises
    OSError, naming ``path``, if it cannot be written: a FIFO that no process reads, a full disk, a folder.
    """
    target = _destination(path)
    regular = _kind(target) in (0, stat.S_IFREG) and target.parts[:2] != ("/", "proc")
    folder = target.parent if regular else Path(tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder, target.stem)
    part = folder / f".{target.stem}.{os.getpid()}-{next(_numbers)}.part{target.suffix}"
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        yield part
        if not regular:
            with open(part, "rb") as content, open(_fifos.pop(target, None) or _open_node(target), "wb") as node:
                shutil.copyfileobj(content, node)
        else:
            if target.exists():
                shutil.copymode(target, part)
            os.replace(part, target)
    except (OSError, RuntimeError) as error:        # torch raises a RuntimeError where a disk is full
        raise OSError(f"cannot write {path}: {error}") from error
    except Exception as error:
        if type(error).__name__ == "SafetensorError":
            raise OSError(f"cannot write {path}: {error}") from error
        raise
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


def _kind(path: Path) -> int:
    """The type of a file (``stat.S_IFREG``, ...), 0 where there is none."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        return 0


def _open_node(path: Path) -> int:
    """A descriptor for writing to a device or FIFO. Does not wait for a FIFO's reader: OSError if there is none."""
    if path.parent == Path(f"/proc/{os.getpid()}/fd"):      # /dev/stdout: go on where it is written to
        return os.dup(int(path.name))
    fifo = stat.S_ISFIFO(_kind(path))
    try:
        node = os.open(path, os.O_WRONLY | (os.O_NONBLOCK if fifo else 0))
    except OSError as error:
        reason = "it is a FIFO that no process reads" if fifo and error.errno == errno.ENXIO else error.strerror
        raise OSError(error.errno, reason, str(path)) from None
    os.set_blocking(node, True)
    return node


def _sweep(folder: Path, stem: str) -> None:
    """Remove what killed processes have left of files of that name."""
    import psutil

    for stale in folder.glob(f".{glob.escape(stem)}.*-*.part*"):
        owner = stale.name.removeprefix(f".{stem}.").partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            stale.unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    """The same with None for NaN and infinities."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
