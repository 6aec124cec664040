"""Files that appear whole or not at all, and places that can be written."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any


def cache_dir() -> Path:
    """``$SPIN_HOME`` if set, else the platform's user cache for ``spin_core``. Not created here."""
    if home := os.environ.get("SPIN_HOME"):
        return Path(home).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("spin_core", appauthor=False))


def check_writable(path: Path) -> None:
    """Raise OSError for a file that can't be written: now, not after the work. Its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    path.open("a").close()
    if fresh:
        path.unlink()


def save_json(path: str | Path, document: dict[str, Any]) -> None:
    """Write ``document`` as JSON: the file appears whole or not at all, and has null for numbers that JSON does not
    have."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(_plain(document), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(partial, path)


def _plain(value: Any) -> Any:
    """The same with None for numbers that are none or infinite."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
