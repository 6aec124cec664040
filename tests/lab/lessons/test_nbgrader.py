"""nbgrader makes an assignment of a lesson and grades it as ``python -m spin_core grade`` does. Skipped without nbgrader:
put it on the PATH from an environment of its own (notebooks/TEACHING.md)."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from spin_core.lab.lessons import grade, solutions
from spin_core.lab.provenance import ROOT

pytestmark = [pytest.mark.skipif(not shutil.which("nbgrader"), reason="nbgrader is not on the PATH"),
              pytest.mark.timeout(1800)]
CONFIG = 'c = get_config()\nc.CourseDirectory.course_id = "spin"\nc.ExecutePreprocessor.timeout = 600\n'


@pytest.fixture
def nbgrader(tmp_path):
    """Runs nbgrader's command in a course of its own, whose kernel is this interpreter."""
    spec = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "Python 3",
        "language": "python", "env": {"PYTHONPATH": str(ROOT)}}))
    (tmp_path / "nbgrader_config.py").write_text(CONFIG)

    def run(*arguments: str) -> None:
        done = subprocess.run(["nbgrader", *arguments], cwd=tmp_path, text=True, capture_output=True, env={
            **os.environ, "PYTHONPATH": "", "JUPYTER_PATH": str(tmp_path / "jupyter")})
        assert done.returncode == 0, done.stderr[-3000:]
    return run


@pytest.mark.parametrize("lesson", ["04_decomposition", "06_verify_kernel"])
def test_both_graders_agree_on_a_right_a_wrong_and_an_untouched_submission(lesson, nbgrader, tmp_path):
    source = ROOT / "notebooks" / "solutions" / f"{lesson}.ipynb"
    right = source.read_text("utf-8")
    wrong = json.loads(right)
    task, check = next(solutions.graded(wrong))
    text = re.sub(r"### BEGIN.*### END SOLUTION", "return None", solutions.source(task), flags=re.DOTALL)
    task["source"] = text.splitlines(keepends=True)
    (tmp_path / "source" / lesson).mkdir(parents=True)
    shutil.copy(source, tmp_path / "source" / lesson)
    nbgrader("generate_assignment", lesson)
    released = (tmp_path / "release" / lesson / source.name).read_text("utf-8")
    assert "BEGIN SOLUTION" not in released and "raise NotImplementedError" in released
    handed_in = {"right": right, "wrong": json.dumps(wrong), "untouched": released}
    own = {}
    for student, notebook in handed_in.items():
        path = tmp_path / "submitted" / student / lesson / source.name
        path.parent.mkdir(parents=True)
        path.write_text(notebook, "utf-8")
        own[student] = sum(score.points for score in grade.grade(path))
    most = sum(check["metadata"]["nbgrader"]["points"] for _, check in solutions.graded(json.loads(right)))
    assert own == {"right": most, "wrong": most - check["metadata"]["nbgrader"]["points"], "untouched": 0}

    nbgrader("autograde", lesson)
    nbgrader("export", "--to", "grades.csv")
    with open(tmp_path / "grades.csv") as file:
        assert {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)} == own
