"""Places on disk."""

from pathlib import Path


def check_writable(path: Path) -> None:
    """Raise OSError for a file that can't be written: now, not after the work. Its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    path.open("a").close()
    if fresh:
        path.unlink()
