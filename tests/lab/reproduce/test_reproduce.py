"""The notebook runner, on small notebooks made here, and the rules for the notebooks of the project."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from rich.console import Console

from spin_core import __main__ as command_line
from spin_core.files import locked
from spin_core.lab.reproduce import ROOT, NotebookError
from spin_core.lab.reproduce import command, runner
from spin_core.lab.reproduce.kernel import execute
from spin_core.lab.reproduce.notebooks import discover, notebook_digest, package_digest, parameters
from spin_core.lab.reproduce.progress import Progress, clock
from spin_core.lab.reproduce.storing import MAX_STORED_BYTES, store

DECLARED = "profile = 'default'\ndevice = 'cpu'\nfigures_dir = None\nown = 3  # not the runner's business"

FIGURE = """
from matplotlib.figure import Figure
from spin_core.lab.results import figures
fig = Figure()
fig.subplots().plot([1, 2], [1, 2])
series = [dict(label="a", kind="modelled", source="s", x=[1, 2], y=[1, 2])]
path = figures.save("NAME", fig, series, caption="c", directory=figures_dir)
"""


def write(path: Path, *sources: str, declared: str | None = DECLARED) -> Path:
    cells = [new_markdown_cell("# A lesson")]
    if declared is not None:
        cells.append(new_code_cell(declared, metadata={"tags": ["parameters"]}))
    nbformat.write(new_notebook(cells=[*cells, *map(new_code_cell, sources)]), path)
    return path


def main(arguments: list[str], notebooks: Path) -> int:
    """``python -m spin_core reproduce`` on these notebooks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "NOTEBOOKS", notebooks)
        return command_line.main(["reproduce", *arguments])


def printed(path: Path) -> str:
    return "".join(output.get("text", "") for cell in nbformat.read(path, 4).cells
                   for output in cell.get("outputs", []))


# ---- choosing notebooks

def test_discover_by_name_prefix_and_number(tmp_path):
    for name in ("10_late", "01_first", "01_first_again", "02_next"):
        write(tmp_path / f"{name}.ipynb")

    def stems(only=None):
        return [path.stem for path in discover(tmp_path, only)]

    assert stems() == ["01_first", "01_first_again", "02_next", "10_late"]
    assert stems("01_first") == ["01_first"], "an exact name is not a prefix"
    assert stems("notebooks/02_next.ipynb") == ["02_next"]
    assert stems("01_f") == ["01_first", "01_first_again"]
    assert stems("2") == stems("02") == ["02_next"]
    assert stems("1") == ["01_first", "01_first_again"], "1 is not 10"
    for unknown in ("3", "next", "_", ""):
        with pytest.raises(ValueError, match="known: 01_first, 01_first_again, 02_next, 10_late"):
            discover(tmp_path, unknown)


def test_command_refuses_what_it_does_not_know(tmp_path, capsys):
    write(tmp_path / "01_first.ipynb")
    assert main(["--only", "nothing", "--output", str(tmp_path)], notebooks=tmp_path) == 2
    assert "no notebook 'nothing'; known: 01_first" in capsys.readouterr().err
    assert main(["--output", str(tmp_path)], notebooks=tmp_path / "empty") == 2
    assert "no notebooks in" in capsys.readouterr().err
    assert main(["--device", "abacus", "--output", str(tmp_path)], notebooks=tmp_path) == 2
    assert "device 'abacus' cannot be used" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["--device", "cpu", "--output", str(tmp_path / "file")], notebooks=tmp_path) == 2
    assert "file" in capsys.readouterr().err
    (tmp_path / "file").unlink()
    assert main(["--store", "--profile", "quick"], notebooks=tmp_path) == 2
    with pytest.raises(SystemExit) as stop:
        main(["--profile", "huge"], notebooks=tmp_path)
    assert stop.value.code == 2
    assert sorted(os.listdir(tmp_path)) == ["01_first.ipynb"], "nothing was started"


# ---- reading them

def test_parameters_are_the_literals_of_the_tagged_cell(tmp_path):
    source = "# which\nprofile: str = 'quick'\nsizes = [1, -2]\nx = None"
    assert parameters(nbformat.read(write(tmp_path / "a.ipynb", declared=source), 4)) == {
        "profile": "quick", "sizes": [1, -2], "x": None}


@pytest.mark.parametrize("declared", [
    "import os", "n = len('abc')", "a = b = 1", "a, b = 1, 2", "n += 1", "n: int", "n = ", "print(1)", "a.b = 1"])
def test_parameters_that_are_no_plain_literals(tmp_path, declared):
    with pytest.raises(NotebookError, match="cell 2, tagged 'parameters', must hold plain literals only"):
        parameters(nbformat.read(write(tmp_path / "a.ipynb", declared=declared), 4))


def test_exactly_one_parameters_cell():
    one, two = (new_code_cell("n = 1", metadata={"tags": ["parameters"]}) for _ in range(2))
    text = new_markdown_cell("n = 1", metadata={"tags": ["parameters"]})
    for cells, has in (([], "has 0"), ([one, two], r"has 2 \(cells 1, 2\)"), ([text], r"has 1 \(cells 1\)")):
        with pytest.raises(NotebookError, match=f"exactly one code cell tagged 'parameters', {has}"):
            parameters(new_notebook(cells=cells))


def test_digest_follows_sources_tags_and_inputs_but_not_outputs(tmp_path):
    notebook = nbformat.read(write(tmp_path / "a.ipynb", "1 + 1"), 4)
    first = notebook_digest(notebook, "quick")
    notebook.cells[-1].outputs = [new_output("stream", text="2")]
    notebook.cells[-1].execution_count = 7
    assert notebook_digest(notebook, "quick") == first
    assert notebook_digest(notebook, "full") != first
    notebook.cells[-1].metadata["tags"] = ["new"]
    assert notebook_digest(notebook, "quick") != first
    notebook.cells[-1].metadata["tags"] = []
    notebook.cells[-1].source += "0"
    assert notebook_digest(notebook, "quick") != first


def test_package_digest_sees_code_data_and_pins(tmp_path):
    package = tmp_path / "spin_core"
    (package / "zoo").mkdir(parents=True)
    seen = {package_digest(package)}
    for name, text in (("a.py", "1"), ("a.py", "2"), ("zoo/w.bin", "1"), ("../pyproject.toml", "torch==1"),
                       ("../figures/data/box/peers.json", "{}"), ("../figures/data/box/peers.json", "[]")):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
        seen.add(package_digest(package))
    assert len(seen) == 7
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "a.pyc").write_text("compiled")
    assert package_digest(package) in seen


# ---- running them: one run with every kind of ending, looked at by several tests

@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Four notebooks run through the command, from a folder that has nothing to do with them."""
    folder = tmp_path_factory.mktemp("with space")
    notebooks, elsewhere = folder / "notebooks", folder / "elsewhere"
    notebooks.mkdir()
    elsewhere.mkdir()
    write(notebooks / "01_good.ipynb", "import os, sys\nprint(profile, device, figures_dir, own)",
          "print(os.getcwd(), sys.executable)", FIGURE.replace("NAME", "good"), "own + 1")
    write(notebooks / "02_bad.ipynb", FIGURE.replace("NAME", "early"), "def f():\n    raise KeyError('oops')\nf()",
          "print('never')")
    write(notebooks / "03_untagged.ipynb", "1", declared=None)
    write(notebooks / "04_dies.ipynb", "1", "import os\nos._exit(3)", declared="own = 1")
    write(notebooks / "05_last.ipynb", "print('still runs', profile)", declared="profile = 'default'")
    before = Path.cwd()
    os.chdir(elsewhere)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MPLBACKEND", "Agg")
            status, out, err = run_captured(notebooks, folder, "--profile", "quick")
    finally:
        os.chdir(before)
    return {"folder": folder, "notebooks": notebooks, "runs": folder / "runs" / "quick", "status": status,
            "out": out, "err": err}


def run_captured(notebooks: Path, output: Path, *arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["--output", str(output), "--device", "cpu", *arguments], notebooks=notebooks)
    return status, out.getvalue(), err.getvalue()


def test_success_is_stored_as_notebook_and_page(ran):
    text = printed(ran["runs"] / "01_good.ipynb")
    assert "quick cpu ../figures 3" in text, "declared parameters are passed, the notebook's own kept"
    assert f"{ran['notebooks'].resolve()} {sys.executable}" in text, "own folder, this interpreter"
    page = (ran["runs"] / "01_good.html").read_text("utf-8")
    assert "A lesson" in page and "quick cpu ../figures 3" in page
    assert "still runs quick" in printed(ran["runs"] / "05_last.ipynb")


def test_failures_are_named_and_the_others_run(ran):
    assert ran["status"] == 1
    assert "[1/5] 01_good: finished in" in ran["out"] and "[5/5] 05_last: finished in" in ran["out"]
    bad, untagged, dies = ran["err"].split("3 failed:")[1].strip().splitlines()
    assert bad.strip() == "02_bad: cell 4 of 5 (def f():): KeyError: 'oops'"
    assert untagged.strip() == "03_untagged: needs exactly one code cell tagged 'parameters', has 0"
    assert dies.strip().startswith("04_dies: cell 4 of 4 (import os): the kernel died")
    assert "raise KeyError('oops')" in ran["out"], "the last lines of the traceback"
    assert "\x1b[" not in ran["out"]


def test_failures_leave_what_is_finished(ran):
    assert sorted({*os.listdir(ran["runs"])} - {".lock"}) == [
        "01_good.html", "01_good.ipynb", "02_bad.failed.ipynb", "04_dies.failed.ipynb", "05_last.html",
        "05_last.ipynb", "state.json"], "no half written file, no scratch folder"
    figures_dir = ran["folder"] / "figures"
    assert (figures_dir / "early.svg").exists(), "saved before the notebook failed"
    document = json.loads((figures_dir / "good.json").read_text())
    assert (document["notebook"], document["profile"]) == ("01_good", "quick")
    index = (figures_dir / "index.html").read_text()
    for name in ("good", "early"):
        assert f'src="{name}.png"' in index and f'href="{name}.svg"' in index
    assert "01_good" in index and "profile quick" in index


def test_resume_change_and_lost_files(ran, tmp_path, monkeypatch):
    """What runs again, and what does not; the kernel itself is not needed to tell."""
    started = []

    def fake(path, output, values, **_):
        started.append((path.stem, values["profile"], values.get("device")))
        executed = nbformat.read(path, 4)
        nbformat.write(executed, output)
        return executed

    monkeypatch.setattr(runner, "execute", fake)
    monkeypatch.setattr(runner, "write_html", lambda notebook, path: path.write_text("page"))
    notebooks = [ran["notebooks"] / "01_good.ipynb", ran["notebooks"] / "05_last.ipynb"]

    def again(**options):
        started.clear()
        jobs = runner.run_all(notebooks, ran["folder"], **{"profile": "quick"} | options)
        return [name for name, *_ in started], [job.status for job in jobs]

    assert again() == ([], ["unchanged", "unchanged"]), "finished by the real run above"
    assert again(fresh=True) == (["01_good", "05_last"], ["finished", "finished"])
    assert again() == ([], ["unchanged", "unchanged"])
    assert again(device="cuda")[0] == ["01_good", "05_last"]
    assert again(device="cuda")[0] == []
    assert again(profile="full")[0] == ["01_good", "05_last"] and started[0][1:] == ("full", "cpu")
    again()

    (ran["folder"] / "figures" / "good.png").rename(tmp_path / "good.png")
    assert again()[0] == ["01_good"], "a figure is missing"
    (tmp_path / "good.png").rename(ran["folder"] / "figures" / "good.png")
    (ran["runs"] / "05_last.html").unlink()
    assert again()[0] == ["05_last"], "a page is missing"

    source = notebooks[1].read_text()
    notebooks[1].write_text(source.replace("still runs", "changed"))
    assert again()[0] == ["05_last"]
    monkeypatch.setattr(runner, "package_digest", lambda: "another package")
    assert again()[0] == ["01_good", "05_last"]
    assert again()[0] == []

    def fails(path, output, values, **_):
        raise NotebookError("cell 1: no luck")

    monkeypatch.setattr(runner, "execute", fails)
    assert again(fresh=True)[1] == ["failed", "failed"]
    monkeypatch.setattr(runner, "execute", fake)
    assert again()[0] == ["01_good", "05_last"], "what failed last is not finished, whatever was before"


def test_a_second_run_into_the_same_output_is_refused_and_what_a_killed_one_left_goes(tmp_path, capsys):
    write(tmp_path / "01_any.ipynb", declared=None)
    left = tmp_path / "runs" / "default" / ".part-abc"
    left.mkdir(parents=True)
    with locked(left.parent):
        assert main(["--output", str(tmp_path), "--device", "cpu"], notebooks=tmp_path) == 2
    assert f"another process is writing into {left.parent}" in capsys.readouterr().err and left.exists()
    with locked(tmp_path / "figures"):      # of another profile
        assert main(["--output", str(tmp_path), "--device", "cpu"], notebooks=tmp_path) == 2
    assert f"another process is writing into {tmp_path / 'figures'}" in capsys.readouterr().err and left.exists()
    assert main(["--output", str(tmp_path), "--device", "cpu"], notebooks=tmp_path) == 1 and not left.exists()


@pytest.mark.parametrize("damaged", ['{"01', "[]", '{"01_any": 3}'])
def test_damaged_state_is_named(tmp_path, capsys, damaged):
    state = tmp_path / "runs" / "default" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text(damaged)
    with pytest.raises(ValueError, match="state.json is damaged"):
        runner.State(state)
    write(tmp_path / "01_any.ipynb", "1")
    assert main(["--output", str(tmp_path), "--device", "cpu"], notebooks=tmp_path) == 2
    assert "state.json is damaged" in capsys.readouterr().err


def test_a_cell_over_the_limit_is_a_failure(tmp_path):
    path = write(tmp_path / "slow.ipynb", "import time\ntime.sleep(300)", "print('never')")
    begin = time.monotonic()
    with pytest.raises(NotebookError, match=r"cell 3 of 4 \(import time\): took longer than the limit of 1 s"):
        execute(path, tmp_path / "out.ipynb", {"profile": "quick"}, cell_seconds=1)
    assert time.monotonic() - begin < 60
    assert not kernels(os.getpid())


def test_leaving_early_is_a_failure(tmp_path):
    path = write(tmp_path / "exit.ipynb", "import sys\nsys.exit(0)", "print('never')")
    seen = []
    with pytest.raises(NotebookError, match=r"cell 3 of 4 \(import sys\): SystemExit"):
        execute(path, tmp_path / "out.ipynb", {}, cell_seconds=60, on_cell=lambda *at: seen.append(at))
    assert seen == [(0, 4), (1, 4), (2, 4)]


def kernels(parent: int) -> list[psutil.Process]:
    children = psutil.Process(parent).children(recursive=True)
    return [child for child in children if any("ipykernel_launcher" in word for word in child.cmdline())]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_cleanly_and_keeps_what_is_finished(tmp_path, sent):
    notebooks, out = tmp_path / "notebooks", tmp_path / "out"
    notebooks.mkdir()
    write(notebooks / "01_done.ipynb", "1")
    write(notebooks / "02_long.ipynb", "import time\nopen('reached', 'w').close()\ntime.sleep(300)")
    if sent == signal.SIGTERM:          # one kernel less
        (notebooks / "01_done.ipynb").unlink()
    # a background job of a shell without job control ignores the signal, and so would its children
    program = ("import signal, sys; from pathlib import Path; from spin_core.__main__ import main\n"
               f"from spin_core.lab.reproduce import command; command.NOTEBOOKS = Path({str(notebooks)!r})\n"
               f"signal.signal(signal.{sent.name}, signal.default_int_handler)\n"
               f"sys.exit(main(['reproduce', '--output', {str(out)!r}, '--device', 'cpu']))")
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not (notebooks / "reached").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        started = kernels(process.pid)
        process.send_signal(sent)
        said, complaint = process.communicate(timeout=60)
    assert process.returncode == 130, complaint
    assert complaint.strip() == "interrupted; finished notebooks are kept, the same command goes on from here"
    assert len(started) == 1 and not any(kernel.is_running() for kernel in started)
    runs = sorted({*os.listdir(out / "runs" / "default")} - {".lock"})
    if sent == signal.SIGINT:
        assert runs == ["01_done.html", "01_done.ipynb", "state.json"] and "01_done: finished" in said
    else:
        assert runs == []


# ---- what is left

def test_time_left(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress(["a", "b", "c"], {"a": 10.0, "c": 30.0})
    assert progress.left() == 10 + 20 + 30, "b, never finished, counts like the mean of the others"
    progress.start("a", 4)
    now += 4
    assert progress.left() == 6 + 20 + 30
    now += 100
    assert progress.left() == 0 + 20 + 30, "slower than last time, but never less than nothing"
    progress.finish("a", "finished", 104.0)
    progress.start("b", 4)
    progress.cell(1, 4)
    now += 5
    assert progress.left() == 15 + 30, "a quarter took five seconds"
    progress.finish("b", "unchanged")
    progress.finish("c", "FAILED")
    assert progress.left() == 0
    assert Progress(["a"], {}).left() is None


@pytest.mark.parametrize("seconds, text", [
    (0, "0 s"), (59.4, "59 s"), (59.6, "1:00"), (3599, "59:59"), (3723, "1:02:03")])
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_live_display_on_a_terminal(monkeypatch):
    screen = io.StringIO()
    progress = Progress(["01_a", "02_b"], {})
    progress.console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    with progress:
        progress.start("01_a", 5)
        progress.cell(2, 5)
        progress.live.refresh()
        progress.finish("01_a", "finished in 1 s", 1.0)
    shown = screen.getvalue()
    assert "notebook 1 of 2" in shown and "cell 3 of 5" in shown and "elapsed" in shown and "left" in shown
    assert "[1/2] 01_a: finished in 1 s" in shown


# ---- storing results

def executed_pair(folder: Path, output=None) -> tuple[Path, Path]:
    """A source notebook and what papermill makes of it, made by hand."""
    source = write(folder / "01_a.ipynb", "print(1)", "", "2")
    ran = nbformat.read(source, 4)
    for count, cell in zip((1, 3, None, 4), [c for c in ran.cells if c.cell_type == "code"]):
        cell.execution_count = count
        cell.metadata["papermill"] = {"duration": 1.0}
    ran.cells[2].outputs = [new_output("stream", text="1\n")]
    ran.cells[4].outputs = [output or new_output("execute_result", {"text/plain": "2"}, execution_count=4)]
    injected = new_code_cell("profile = 'default'", metadata={"tags": ["injected-parameters"]}, execution_count=2)
    ran.cells.insert(2, injected)
    ran.metadata["papermill"] = {"input_path": str(source)}
    ran.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    (folder / "runs").mkdir()
    nbformat.write(ran, folder / "runs" / "01_a.ipynb")
    return source, folder / "runs" / "01_a.ipynb"


def test_store_keeps_outputs_and_nothing_of_papermill(tmp_path):
    source, ran = executed_pair(tmp_path)
    before = nbformat.read(source, 4)
    store(source, ran)
    after = nbformat.read(source, 4)
    nbformat.validate(after)
    assert "papermill" not in source.read_text() and "injected" not in source.read_text()
    assert [cell.source for cell in after.cells] == [cell.source for cell in before.cells]
    assert [c.execution_count for c in after.cells if c.cell_type == "code"] == [1, 2, None, 3]
    assert after.cells[2].outputs[0].text == "1\n" and after.cells[4].outputs[0].execution_count == 3
    assert after.metadata["kernelspec"]["name"] == "python3" and "widgets" in after.metadata
    assert notebook_digest(after) == notebook_digest(before), "storing does not make it run again"
    once = source.read_text()
    store(source, ran)
    assert source.read_text() == once
    assert sorted(os.listdir(tmp_path)) == ["01_a.ipynb", "runs"]


@pytest.mark.parametrize("output, message", [
    (new_output("error", ename="KeyError", evalue="x", traceback=[]), "cell 5 ends in KeyError: x"),
    (new_output("stream", text=f"{sys.prefix}/lib/warnings.py: old"), "cell 5 shows a path of this machine"),
    (new_output("display_data", {"text/html": f"<p>{ROOT}/figures"}), "cell 5 shows a path of this machine"),
    (new_output("display_data", {"image/png": "A" * MAX_STORED_BYTES}), "the limit is 2 MB"),
])
def test_store_refuses_what_a_reader_should_not_get(tmp_path, output, message):
    source, ran = executed_pair(tmp_path, output)
    before = source.read_text()
    with pytest.raises(NotebookError, match=message):
        store(source, ran)
    assert source.read_text() == before


def test_store_refuses_another_notebooks_outputs(tmp_path):
    source, ran = executed_pair(tmp_path)
    write(source, "print(2)", "", "2")
    with pytest.raises(NotebookError, match="was not made from"):
        store(source, ran)


def test_store_through_the_command(tmp_path):
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    path = write(notebooks / "01_a.ipynb", "6 * 7")
    assert run_captured(notebooks, tmp_path, "--store")[0] == 0
    stored = nbformat.read(path, 4)
    assert stored.cells[-1].outputs[0].data["text/plain"] == "42" and stored.cells[-1].execution_count == 2
    status, out, _ = run_captured(notebooks, tmp_path)
    assert status == 0 and "unchanged" in out


# ---- the notebooks of the project

LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_stored_notebook(path):
    """One tagged cell with plain literals, results of an undisturbed run from top to bottom, and not too large."""
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    declared = parameters(notebook)
    assert declared.get("profile", "default") == "default", "results are stored for the default profile"
    assert notebook.metadata.kernelspec.name == "python3"
    assert path.stat().st_size < MAX_STORED_BYTES
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), \
        "run python -m spin_core reproduce --store"
    for cell in code:
        assert not [output for output in cell.outputs if output.output_type == "error"]
        if re.search(r"^ *show\(", cell.source, re.MULTILINE):
            assert any("image/png" in output.get("data", {}) for output in cell.outputs), cell.source
    assert "papermill" not in notebook.metadata
    assert not any("injected-parameters" in cell.metadata.get("tags", []) for cell in notebook.cells)
