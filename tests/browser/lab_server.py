"""A JupyterLab of this interpreter with fresh settings, for one folder."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import nbformat

from spin_core.lab.reproduce.notebooks import parameters

ROOT = Path(__file__).resolve().parents[2]

# No questions to the user, no network, and every cell in the page at once instead of only those in view.
SETTINGS = {
    "apputils-extension/notification": {"checkForUpdates": False, "fetchNews": "false",
                                        "doNotDisturbMode": True},
    "notebook-extension/tracker": {"windowingMode": "none"},
}


@dataclass
class Lab:
    """A running JupyterLab: where it listens, its secret, and the folder it serves."""

    url: str
    token: str
    folder: Path

    def address(self, notebook: str) -> str:
        """Of one notebook in single-document mode."""
        return f"{self.url}/doc/tree/{notebook}?token={self.token}"


def make_quick(path: Path) -> None:
    """Give a notebook the parameters of a quick run."""
    notebook = nbformat.read(path, as_version=4)
    values = parameters(notebook) | {"profile": "quick"}
    cell = next(c for c in notebook.cells if "parameters" in c.metadata.get("tags", []))
    cell.source = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    nbformat.write(notebook, path)


@contextmanager
def serve(home: Path, folder: Path) -> Iterator[Lab]:
    """Run JupyterLab over ``folder``; ``home`` gets its settings and its log."""
    for name, values in SETTINGS.items():
        file = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "JUPYTER_CONFIG_DIR": str(home / "config"), "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser",
               "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
               f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}"]
    with open(home / "jupyterlab.log", "w+") as log:
        server = subprocess.Popen(command, env=environment, cwd=home, stdout=log, stderr=subprocess.STDOUT,
                                  start_new_session=True)
        try:
            running = Lab(f"http://127.0.0.1:{port}", token, folder)
            _wait_until_up(running, server, home / "jupyterlab.log", seconds=60)
            yield running
        finally:
            _end(server)


def _wait_until_up(lab: Lab, server: subprocess.Popen, log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"JupyterLab ended with status {server.returncode}:\n"
                               f"{log.read_text()[-3000:]}")
        try:
            with urllib.request.urlopen(f"{lab.url}/api/status?token={lab.token}", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise RuntimeError(f"JupyterLab did not answer within {seconds:.0f} s:\n{log.read_text()[-3000:]}")


def _end(server: subprocess.Popen) -> None:
    """Ask the server to go, which ends its kernels; insist if it does not."""
    server.terminate()
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(20)
