"""A student's copy of the lessons: complete, never written over, and opened in JupyterLab."""

from __future__ import annotations

import shutil
import sys

import nbformat
import pytest

from spin_core.lab.lessons import workspace


@pytest.fixture
def root(tmp_path):
    (tmp_path / "notebooks").mkdir()
    for name in ("00_start_here", "01_first"):
        notebook = nbformat.v4.new_notebook(metadata={"widgets": {}})
        output = nbformat.v4.new_output("stream", text="3\n")
        notebook.cells = [nbformat.v4.new_code_cell("print(3)", outputs=[output], execution_count=7)]
        nbformat.write(notebook, tmp_path / "notebooks" / f"{name}.ipynb")
    return tmp_path


def test_lessons_are_copied_once_without_their_outputs(root):
    folder = workspace.prepare(root)
    assert folder == root / "my_lessons" and sorted(p.name for p in folder.iterdir()) == ["00_start_here.ipynb", "01_first.ipynb"]
    copy = nbformat.read(folder / "01_first.ipynb", as_version=4)
    assert copy.cells[0].source == "print(3)" and not copy.cells[0].outputs and "widgets" not in copy.metadata
    (folder / "01_first.ipynb").write_text("my answers")
    (folder / "00_start_here.ipynb").unlink()
    assert workspace.prepare(root) == folder
    assert (folder / "01_first.ipynb").read_text() == "my answers" and (folder / "00_start_here.ipynb").exists()


def test_a_fresh_copy_lies_beside_the_old_one_and_is_the_one_that_opens_from_then_on(root):
    old = workspace.prepare(root)
    (old / "01_first.ipynb").write_text("my answers")
    new = workspace.prepare(root, fresh=True)
    assert new == root / "my_lessons_2" == workspace.prepare(root) and "print" in (new / "01_first.ipynb").read_text()
    assert (old / "01_first.ipynb").read_text() == "my answers"
    assert workspace.prepare(root, fresh=True) == root / "my_lessons_3"


def test_the_newest_folder_is_found_though_an_older_one_is_gone(root):
    old, _ = workspace.prepare(root), workspace.prepare(root, fresh=True)
    shutil.rmtree(old)
    assert workspace.prepare(root) == root / "my_lessons_2"
    assert workspace.prepare(root, fresh=True) == root / "my_lessons_3"


def test_a_file_in_the_place_of_the_folder_is_named(root, monkeypatch):
    (root / "my_lessons").write_text("notes")
    monkeypatch.setattr(workspace, "ROOT", root)
    with pytest.raises(SystemExit, match="my_lessons is a file: move it away"):
        workspace.main([])


def test_jupyterlab_opens_the_first_lesson_and_gets_the_other_options(root, monkeypatch, capsys):
    called = []
    monkeypatch.setattr(workspace, "ROOT", root)
    monkeypatch.setattr(workspace.os, "execv", lambda program, arguments: called.append((program, arguments)))
    workspace.main(["--allow-root", "--fresh", "--no-browser"])
    (program, arguments), = called
    assert program == sys.executable and arguments[1:3] == ["-m", "jupyterlab"]
    assert "--LabApp.default_url=/lab/tree/my_lessons/00_start_here.ipynb" in arguments
    assert arguments[-2:] == ["--allow-root", "--no-browser"] and "my_lessons/" in capsys.readouterr().out
