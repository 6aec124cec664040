"""A student's score without nbgrader: ``python -m spin_core grade my_lessons/``.

Of a student's notebook only the exercises run: the lesson's imports, the cells that the student added, the exercise's
cell, and the check as the *lesson* has it. That happens in a process of its own, so that an answer which hangs or ends
the process costs its own points only. Run only notebooks that you would open yourself: they are programs.
"""

import argparse
import ast
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from spin_core.files import save_json
from spin_core.lab.lessons.solutions import graded, source
from spin_core.lab.reproduce import ROOT

START_SECONDS = 120         # for the lesson's imports
DAY = 24 * 60 * 60


@dataclass
class Score:
    """The result of one exercise: ``status`` is "right", "wrong" or "open"."""

    lesson: str
    exercise: str
    status: str
    points: float
    most: float
    message: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("where", nargs="+", type=Path, help="a folder of lessons, or notebooks")
    parser.add_argument("--seconds", type=float, default=30, help="at most so long for an exercise (default 30)")
    parser.add_argument("--json", metavar="OUT", help="write the scores here")


def run(args: argparse.Namespace) -> int:
    """Print the score of every notebook, and the sum. A path that cannot be graded is named and costs no other."""
    if not 0 < args.seconds <= DAY:
        raise ValueError(f"--seconds {args.seconds:g}: must be a finite number above 0, at most {DAY} (a day)")
    paths = []
    for path in [path for where in args.where
                 for path in (sorted(where.glob("*.ipynb")) if where.is_dir() else [where])]:
        if not path.is_file():
            print(f"{path}: not graded, there is no such file or folder")
        elif not (ROOT / "notebooks" / path.name).is_file():
            print(f"{path}: not graded, no lesson has this name")
        else:
            paths.append(path)
    if not paths:
        raise ValueError(f"no lessons in {', '.join(map(str, args.where))}")
    scores: list[Score] = []
    for path in paths:
        found = grade(path, args.seconds)
        scores += found
        if found:
            print(f"{path}: {_points(found)}")
        for score in found:
            print(f"  {dict(right='✔', wrong='✘', open='○')[score.status]} {score.exercise}: "
                  f"{score.points:g} of {score.most:g}. {score.message if score.status != 'right' else ''}".rstrip())
    print(f"{_points(scores)} points")
    if args.json:
        save_json(args.json, {"scores": [asdict(score) for score in scores]})
    return 0


def _points(scores: Sequence[Score]) -> str:
    return f"{sum(s.points for s in scores):g} of {sum(s.most for s in scores):g}"


def grade(path: Path, seconds: float = 30) -> list[Score]:
    """The score of each exercise of a student's notebook; the lesson is the one of the same name.

    Unreadable notebooks and missing cells count as wrong. An exercise gets ``seconds``, after which its process is
    killed and the next exercise starts in another one.
    """
    lesson = json.loads((ROOT / "notebooks" / path.name).read_text())
    tasks = [(task["metadata"]["nbgrader"]["grade_id"], check["metadata"]["nbgrader"]["points"])
             for task, check in graded(lesson)]
    answers: dict[str, dict] = {}
    while waiting := [name for name, _ in tasks if name not in answers]:
        for name, answer in _in_a_process(path, waiting, seconds):
            answers[name] = answer
    return [Score(path.stem, name, answers[name]["status"], points if answers[name]["status"] == "right" else 0, points,
                  answers[name]["message"]) for name, points in tasks]


def _in_a_process(path: Path, names: Sequence[str], seconds: float) -> Iterator[tuple[str, dict]]:
    """Answers to the exercises in their order, until the process has ended or its alarm has killed it; at least one."""
    done = subprocess.run([sys.executable, "-m", __name__, str(path.resolve()), str(seconds), *names],
                          cwd=path.parent, text=True, errors="replace",
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    ready, *answers = done.stdout.splitlines() or [""]
    yield from zip(names, map(_read, answers))
    if len(answers) < len(names):
        late = done.returncode == -signal.SIGALRM
        why = f"no answer within {seconds:g} s" if late else "the answer ended the process"
        yield names[len(answers)], {"status": "wrong", "message": f"{why}." if ready else "The notebook cannot be run."}


def _read(line: str) -> dict:
    """The answer in a line of the process; a line that :func:`_answer` did not write is a wrong answer."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        answer = json.loads(line)
        if answer["status"] in ("right", "wrong", "open") and isinstance(answer["message"], str):
            return answer
    return {"status": "wrong", "message": "The answer disturbed the grading: its result cannot be read."}


def _answer(path: str, seconds: float, names: Sequence[str]) -> None:
    """In the process: a line when the lesson's imports are done, then a line of JSON for each exercise. An alarm, which
    nothing handles, ends the process when one of them takes too long."""
    signal.setitimer(signal.ITIMER_REAL, START_SECONDS)
    # whatever the student's code and the programs that it starts print is dropped: only `out` leads to the grader
    out, sys.stdout = os.fdopen(os.dup(1), "w"), io.StringIO()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    lesson = json.loads((ROOT / "notebooks" / Path(path).name).read_text())
    checks = {task["metadata"]["nbgrader"]["grade_id"]: source(check) for task, check in graded(lesson)}
    cells, theirs, added, broken = [], {}, [], "The exercise's cell is missing."
    try:
        known = {cell["id"] for cell in lesson["cells"]}
        for cell in json.loads(Path(path).read_text())["cells"]:
            if cell["cell_type"] == "code":
                cells.append(_python(source(cell)))
                if "nbgrader" in cell["metadata"]:
                    theirs[cell["metadata"]["nbgrader"]["grade_id"]] = cells[-1]
                elif cell.get("id") not in known:
                    added.append(cells[-1])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        broken = f"The notebook cannot be read ({type(error).__name__}: {error})."
    space = _imports([source(cell) for cell in lesson["cells"] if cell["cell_type"] == "code"] + cells,
                     " ".join([*checks.values(), *theirs.values(), *added]))
    print("ready", file=out, flush=True)
    for name in names:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        answer = _check(theirs[name], checks[name], added, space) if name in theirs else {"status": "wrong",
                                                                                         "message": broken}
        print(json.dumps(answer), file=out, flush=True)


def _python(text: str) -> str:
    """A cell without its magics, shell lines and calls for help (``%timeit f()``, ``!ls``, ``f?``)."""
    try:
        ast.parse(text)         # a line of Python may begin with %, too
    except SyntaxError:
        text = re.sub(r"^([ \t]*)(?:[%!?].*|[\w.]+\?+)$", r"\1pass", text, flags=re.MULTILINE)
    return text


def _imports(cells: Sequence[str], text: str) -> dict:
    """A namespace with what the cells import, as far as ``text`` mentions it (the models' library takes seconds)."""
    space: dict = {"__name__": "__main__"}
    for cell in cells:
        with contextlib.suppress(SyntaxError, ImportError):
            for node in ast.walk(ast.parse(cell)):
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    node.names = [alias for alias in node.names if (alias.asname or alias.name) in text]
                    if node.names:
                        exec(compile(ast.Module([node], []), "imports", "exec"), space)
    return space


def _check(task: str, check: str, added: Sequence[str], space: dict) -> dict:
    """The verdict on one exercise: status and message."""
    for text in added:                                  # helpers; what needs the rest of the lesson fails, and may
        with contextlib.suppress(Exception):
            exec(text, space)
    try:
        exec(task, space)
        answer = eval(check, space)
        return {"status": answer.status, "message": answer.message}
    except BaseException as error:                      # SystemExit as well
        return {"status": "wrong", "message": f"The cell raised {type(error).__name__}: {error}"}


if __name__ == "__main__":
    _answer(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
