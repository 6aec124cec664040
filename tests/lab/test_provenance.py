"""Provenance: plain values that say where a number was measured, and a commit that tells when code differs."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import torch

from spin_core.lab import provenance


def git(folder: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *settings, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_here_names_the_machine_and_the_versions():
    here = provenance.here()
    assert set(here) == {"machine", "cpu", "cpu_kind", "cores", "memory_gib", "gpu", "threads", "threads_set",
                         "bf16_drafts", "versions", "commit", "date"}
    assert json.loads(json.dumps(here)) == here
    assert here["cpu"] and here["cores"] >= 1 and here["memory_gib"] > 0
    assert here["threads"] == torch.get_num_threads()
    assert (here["gpu"] is not None) == torch.cuda.is_available()
    assert here["versions"]["torch"] == torch.__version__
    assert here["versions"]["spin-core"]
    assert here["date"].endswith("+00:00")
    assert socket.gethostname() not in here["machine"].split(), "a host name is no part of a measurement"


def test_here_gives_a_new_dict_every_time():
    provenance.here()["cpu"] = "changed by a caller"
    assert provenance.here()["cpu"] != "changed by a caller"


def test_unknown_package_has_no_version():
    assert provenance.version("no-such-distribution-anywhere") is None


def test_commit_of_a_checkout(tmp_path):
    assert provenance.commit(tmp_path) is None, "not a checkout"
    git(tmp_path, "init", "-q")
    assert provenance.commit(tmp_path) is None, "nothing committed yet"
    (tmp_path / "spin_core").mkdir()
    (tmp_path / "spin_core" / "code.py").write_text("a = 1\n")
    (tmp_path / "figure.json").write_text("{}\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert provenance.commit(tmp_path) == head
    (tmp_path / "figure.json").write_text('{"new": 1}\n')
    assert provenance.commit(tmp_path) == head, "results that a run rewrites do not make the code dirty"
    (tmp_path / "spin_core" / "code.py").write_text("a = 2\n")
    assert provenance.commit(tmp_path) == head + "-dirty"
    assert provenance.commit(tmp_path / "spin_core") is None, "a folder inside somebody's checkout"
    (tmp_path / "spin_core" / "code.py").write_text("a = 1\n")
    assert provenance.commit(tmp_path) == head
    (tmp_path / "spin_core" / "new.py").touch()
    assert provenance.commit(tmp_path) == head + "-dirty", "code that git does not know yet"
    (tmp_path / "spin_core" / "new.py").unlink()
    (tmp_path / ".git" / "index").write_text("broken")
    assert provenance.commit(tmp_path) == head + "-dirty", "git cannot tell"


def test_a_commit_made_meanwhile_is_not_what_ran(monkeypatch):
    before = provenance.here()["commit"]
    monkeypatch.setattr(provenance, "commit", lambda root=None: "made while it ran")
    assert provenance.here()["commit"] == before
