"""All notebooks, one after the other: skip what is finished, go on after a failure, lose nothing."""

import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from spin_core.files import locked, save_json
from spin_core.lab.results import figures
from spin_core.lab.reproduce import NotebookError
from spin_core.lab.reproduce.kernel import execute, write_html
from spin_core.lab.reproduce.notebooks import notebook_digest, package_digest, parameters
from spin_core.lab.reproduce.progress import Progress, clock

CELL_SECONDS = {"quick": 600, "default": 1800, "full": 12 * 3600}
"""How long one cell may take in each profile (the keys are the profiles), so that nothing hangs for ever."""


@dataclass
class Job:
    """One notebook to run and what came of it."""

    path: Path
    status: str = "pending"             # pending, unchanged, finished, failed
    seconds: float = 0.0
    error: str = ""

    @property
    def name(self) -> str:
        return self.path.stem


class State:
    """What earlier runs finished: ``{name: {digest, seconds, figures}}`` in one JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.entries: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8"))
            if not (isinstance(self.entries, dict) and all(isinstance(e, dict) for e in self.entries.values())):
                raise ValueError("not a table of notebooks")
        except FileNotFoundError:
            self.entries = {}
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}); delete it to start afresh") from error

    def finished(self, name: str, digest: str, runs: Path, figures_dir: Path) -> bool:
        """Whether this very notebook has finished, and everything it made is still there."""
        entry = self.entries.get(name, {})
        made = [runs / f"{name}.ipynb", runs / f"{name}.html"]
        made += [figures_dir / f"{figure}.{end}"
                 for figure in entry.get("figures", []) for end in ("json", "svg", "png")]
        return entry.get("digest") == digest and all(path.exists() for path in made)

    def seconds(self) -> dict[str, float]:
        return {name: entry["seconds"] for name, entry in self.entries.items() if "seconds" in entry}

    def record(self, name: str, **entry: Any) -> None:
        self.entries[name] = self.entries.get(name, {}) | entry
        save_json(self.path, dict(sorted(self.entries.items())))


def run_all(notebooks: list[Path], output: Path, *, profile: str = "default", device: str = "cpu", fresh: bool = False,
            cell_seconds: int | None = None) -> list[Job]:
    """Run ``notebooks`` in the order given and return what came of each; see the package's docstring.

    Only one process at a time may do so with this ``output``: BlockingIOError for a second one.
    """
    runs, figures_dir = output / "runs" / profile, output / "figures"
    figures_dir.mkdir(parents=True, exist_ok=True)
    with locked(runs), locked(figures_dir):
        for left in runs.glob(".part-*"):       # of a run that was killed
            shutil.rmtree(left, ignore_errors=True)
        state, package = State(runs / "state.json"), package_digest()
        jobs = [Job(path.resolve()) for path in notebooks]
        with Progress([job.name for job in jobs], state.seconds()) as progress:

            def run(job: Job) -> str:
                """Run one notebook, unless it is finished already, and record it: what is said of that."""
                source = nbformat.read(job.path, as_version=4)
                known, digest = parameters(source), notebook_digest(source, package, profile, device)
                if not fresh and state.finished(job.name, digest, runs, figures_dir):
                    job.status = "unchanged"
                    return "unchanged, nothing to do"
                values = {"profile": profile, "device": device,
                          # relative, so that no executed copy shows where this checkout lies
                          "figures_dir": os.path.relpath(figures_dir, job.path.parent)}
                progress.start(job.name, len(source.cells))
                _execute(job, {name: value for name, value in values.items() if name in known}, runs,
                         cell_seconds or CELL_SECONDS[profile], profile, progress)
                made = [d["name"] for d in figures.read(figures_dir) if d["notebook"] == job.name]
                state.record(job.name, digest=digest, seconds=round(job.seconds, 1), figures=made)
                job.status = "finished"
                return f"finished in {clock(job.seconds)}"

            for job in jobs:
                try:
                    words = run(job)
                except Exception as error:      # whatever went wrong with one notebook, the others still run
                    job.status = "failed"
                    job.error = str(error) if isinstance(error, NotebookError) else f"{type(error).__name__}: {error}"
                    state.record(job.name, digest=None)
                    words = f"FAILED, {job.error}"
                progress.finish(job.name, words, job.seconds if job.status == "finished" else None)
    return jobs


def _execute(job: Job, values: dict[str, Any], runs: Path, cell_seconds: int, profile: str, progress: Progress) -> None:
    """Execute into a scratch folder, then move the executed copy and its page into place."""
    started = time.monotonic()
    failed = runs / f"{job.name}.failed.ipynb"
    with tempfile.TemporaryDirectory(dir=runs, prefix=".part-") as scratch:
        copy, page = Path(scratch, f"{job.name}.ipynb"), Path(scratch, f"{job.name}.html")
        try:
            executed = execute(job.path, copy, values, cell_seconds=cell_seconds, on_cell=progress.cell,
                               environment={"SPIN_NOTEBOOK": job.name, "SPIN_PROFILE": profile})
        except NotebookError:
            if copy.exists():
                copy.replace(failed)        # the reader wants to see how far it came
            raise
        write_html(executed, page)
        copy.replace(runs / copy.name)
        page.replace(runs / page.name)
    failed.unlink(missing_ok=True)
    job.seconds = time.monotonic() - started
