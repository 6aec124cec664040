"""Files that appear whole or not at all, whatever is at their place, and folders that one process holds."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading

import pytest
import torch
from safetensors.torch import save_file
from tiny import little_room

from spin_core.files import check_writable, locked, save_json, writing

DOCUMENT = {"numbers": [1.5, None]}
PLACES = ["regular", "absent", "symlink", "dangling symlink", "chain of symlinks"]


def place(folder, kind: str):
    """(path to write to, path of the file that should then have the content)"""
    path, target = folder / "out.json", folder / "elsewhere" / "target.json"
    target.parent.mkdir()
    if kind == "regular":
        path.write_text("old")
    elif "symlink" in kind:
        (folder / "middle.json").symlink_to("elsewhere/target.json")
        path.symlink_to("middle.json" if kind.startswith("chain") else target)
        if kind != "dangling symlink":
            target.write_text("old")
    return path, target if "symlink" in kind else path


def test_a_saved_document_is_whole_and_strict_json(tmp_path):
    path = tmp_path / "new" / "numbers.json"
    save_json(path, {"a": [1.5, float("nan"), float("inf")], "b": {"c": (1, None)}})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {"a": [1.5, None, None], "b": {"c": [1, None]}}
    with pytest.raises(TypeError):
        save_json(path, {"a": object()})
    assert json.loads(path.read_text())["b"] == {"c": [1, None]}, "what was there is still there"


@pytest.mark.parametrize("kind", PLACES)
def test_links_stay_links_and_their_targets_get_the_content(tmp_path, kind):
    path, target = place(tmp_path, kind)
    link = path.is_symlink()
    check_writable(path)
    save_json(path, DOCUMENT)
    assert json.loads(target.read_text()) == DOCUMENT
    assert path.is_symlink() == link
    assert not [p for p in tmp_path.rglob("*") if p.name.startswith(".")], "temporary files are left"


@pytest.mark.parametrize("kind", PLACES)
def test_an_error_leaves_what_was_there(tmp_path, kind):
    path, target = place(tmp_path, kind)
    before = target.read_text() if target.exists() else None
    with pytest.raises(KeyError):
        with writing(path) as part:
            part.write_text("half")
            raise KeyError
    assert (target.read_text() if target.exists() else None) == before
    assert not [p for p in tmp_path.rglob("*") if p.name.startswith(".")]


@pytest.mark.parametrize("write", [
    lambda part: part.write_bytes(bytes(9999)),
    lambda part: save_file({"a": torch.zeros(9999)}, part),
    lambda part: torch.save(torch.zeros(9999), part)], ids=["bytes", "safetensors", "torch"])
def test_a_full_disk_is_named_and_leaves_what_was_there(tmp_path, write):
    path = tmp_path / "out"
    path.write_text("old")
    with little_room(), pytest.raises(OSError, match=f"cannot write {path}"):
        with writing(path) as part:
            write(part)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_device_is_written_through(tmp_path):
    save_json("/dev/null", DOCUMENT)
    check_writable("/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    (tmp_path / "null").symlink_to("/dev/null")
    save_json(tmp_path / "null", DOCUMENT)
    assert (tmp_path / "null").is_symlink() and stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_standard_output_is_written_through(tmp_path):
    code = "print('before', flush=True); from spin_core.files import *; check_writable('/dev/stdout'); " \
           "save_json('/dev/stdout', {}); print('behind')"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "before\n{}\nbehind\n"
    with open(tmp_path / "out", "w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "before\n{}\nbehind\n"


@pytest.mark.parametrize("checked", [True, False])
def test_a_fifo_gets_the_content_once_and_stays_a_fifo(tmp_path, checked):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    got = []
    reader = threading.Thread(target=lambda: got.append(path.read_text()), daemon=True)
    reader.start()
    for _ in range(500):
        try:
            if checked:
                check_writable(path)
            save_json(path, DOCUMENT)
            break
        except OSError:             # the reader is not there yet
            threading.Event().wait(.01)
    reader.join(10)
    assert json.loads(got[0]) == DOCUMENT and stat.S_ISFIFO(os.stat(path).st_mode)


def test_a_fifo_that_no_process_reads_is_refused(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    for write in (check_writable, lambda path: save_json(path, DOCUMENT)):
        with pytest.raises(OSError, match="FIFO that no process reads") as error:
            write(path)
        assert str(path) in str(error.value)


def test_places_that_are_no_file_are_refused(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path, tmp_path / "loop"):
        for write in (check_writable, lambda path: save_json(path, DOCUMENT)):
            with pytest.raises(OSError) as error:
                write(path)
            assert str(path) in str(error.value)
    for write in (check_writable, lambda path: save_json(path, DOCUMENT)):
        with pytest.raises(ValueError, match="empty path"):
            write("")
    assert (tmp_path / "loop").is_symlink()


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    code = "import os, sys, signal; from spin_core.files import writing\n" \
           "with writing(sys.argv[1]) as part: part.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "out.json")])
    assert done.returncode == -signal.SIGKILL and len(list(tmp_path.iterdir())) == 1
    save_json(tmp_path / "out.json", DOCUMENT)
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_permissions_stay(tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    path.chmod(0o640)
    save_json(path, DOCUMENT)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_folder_is_held_by_one_process(tmp_path):
    code = "import sys; from pathlib import Path; from spin_core.files import locked\n" \
           "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    folder = tmp_path / "new"
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError, match="another process is writing into"), locked(folder):
            pass
        other.send_signal(signal.SIGKILL)
    with locked(folder):            # the lock ends with its process
        pass
