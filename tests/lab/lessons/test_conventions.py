"""What every lesson has, so that students find their way in each: goals, questions, findings, a summary."""

from __future__ import annotations

import re

import nbformat
import pytest

from spin_core.lab.provenance import ROOT

PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LESSONS = [pytest.param(nbformat.read(path, as_version=4).cells, id=path.stem) for path in PATHS[1:]]
ALL = [pytest.param(nbformat.read(path, as_version=4).cells, id=path.stem) for path in PATHS]
START = "\n".join(cell.source for cell in nbformat.read(PATHS[0], as_version=4).cells)
WORDS = r"\b(nobody|somebody|who|whom|whoever|laws?|dear|in vain)\b"      # use a name, a distribution, "expensive", ...


def text(cells) -> str:
    return "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def numbered(section: str) -> int:
    return len(re.findall(r"^\d\. ", section, re.MULTILINE))


@pytest.mark.parametrize("cells", LESSONS)
def test_it_begins_with_goals_time_and_prerequisites(cells):
    first = cells[0].source
    title, minutes = re.match(r"# (\d) · ", first)[1], re.search(r"\*\*Time\*\* (\d+) minutes", first)[1]
    assert numbered(first.partition("**After this lesson you can**")[2]) in (3, 4)
    assert "**You need** lesson" in first or title == "1"
    assert "[glossary](00_start_here.ipynb)" in first and "notebooks/solutions/" in first
    assert re.search(rf"^\| \[{title} · .*\| {minutes} \|", START, re.MULTILINE), "the start page gives other minutes"


@pytest.mark.parametrize("cells", LESSONS)
def test_it_asks_to_predict_before_it_shows(cells):
    asked = [place for place, cell in enumerate(cells) if "> **Predict.** " in cell.source]
    assert len(asked) >= 3 and all(cells[place + 1].cell_type == "code" for place in asked)


@pytest.mark.parametrize("cells", LESSONS)
def test_a_bold_finding_stands_under_every_figure(cells):
    for place, cell in enumerate(cells):
        if cell.cell_type == "code" and re.search(r"^ *show\(", cell.source, re.MULTILINE):
            below = next(other.source for other in cells[place + 1:] if other.cell_type == "markdown")
            assert below.startswith("**"), f"behind cell {place}: {below[:60]!r}"


@pytest.mark.parametrize("cells", LESSONS)
def test_it_ends_with_three_things_to_remember_and_two_questions(cells):
    remember, _, rest = text(cells).partition("## Remember\n")[2].partition("## Two questions\n")
    questions, _, answers = rest.partition("<details><summary>Answers</summary>\n")
    assert [numbered(part) for part in (remember, questions, answers.partition("</details>")[0])] == [3, 2, 2]
    assert "## What to read next" in answers


@pytest.mark.parametrize("cells", ALL)
def test_its_code_does_not_scroll_sideways(cells):
    assert not [line for cell in cells if cell.cell_type == "code" for line in cell.source.splitlines() if len(line) > 88]


@pytest.mark.parametrize("cells", ALL)
def test_its_words_are_plain_and_its_fine_print_is_folded(cells):
    assert not re.search(WORDS, text(cells), re.IGNORECASE)
    for cell in cells:
        assert cell.source.count("<details>") == cell.source.count("</details>")
        assert not re.search(r"fine print", re.sub(r"<details>.*?</details>", "", cell.source, flags=re.DOTALL), re.IGNORECASE)
