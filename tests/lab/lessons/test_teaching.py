"""What a teacher uses: slides from tagged cells, buttons, and the numbers that TEACHING.md states."""

from __future__ import annotations

import json
import re
import tomllib

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from spin_core.lab import lessons
from spin_core.lab.lessons import buttons, slides, solutions
from spin_core.lab.provenance import ROOT

SLIDE = {"tags": ["slide"]}
TEACHING = (ROOT / "notebooks" / "TEACHING.md").read_text("utf-8")


def test_tagged_texts_and_figures_become_slides_and_the_rest_is_left_out():
    picture = new_output("display_data", {"image/png": "QUJD\n"})
    made = slides.deck(new_notebook(cells=[
        new_markdown_cell("# One\n\nA.\n\n<details>fine\nprint</details>\n\n### Exercise 1\n\nDo.\n\n## Two\n\nB.",
                          metadata=SLIDE),
        new_markdown_cell("not tagged"),
        new_code_cell("show()", outputs=[new_output("stream", text="printed"), picture], metadata=SLIDE),
        new_code_cell("widget()"),
        new_markdown_cell("**It is faster than before.** Details.\n\n## Three\n\nC.", metadata=SLIDE)]))
    kinds = [(cell.metadata.slideshow.slide_type, cell.source.removeprefix(slides.STYLE).strip())
             for cell in made.cells]
    assert kinds == [("slide", "# One\n\nA."), ("slide", "## Two\n\nB."),
                     ("slide", "### It is faster than before.\n\n<img src='data:image/png;base64,QUJD'>"),
                     ("notes", "**It is faster than before.** Details."), ("slide", "## Three\n\nC.")]
    with pytest.raises(ValueError, match="tag slide"):
        slides.deck(new_notebook(cells=[new_markdown_cell("x")]))


def test_the_lessons_with_slides_have_figures_on_them(tmp_path):
    for number in (1, 3, 5, 7):
        path, = (ROOT / "notebooks").glob(f"0{number}_*.ipynb")
        made = slides.deck(nbformat.read(path, as_version=4))
        assert len(made.cells) >= 8 and sum("<img" in cell.source for cell in made.cells) >= 3
    page, = slides.write([5], tmp_path)
    assert page.name == "05_pipeline.slides.html" and "Reveal" in page.read_text()


def test_a_lesson_is_quick_while_nbgrader_runs_it(monkeypatch, capsys):
    sizes = dict(quick=1, default=2)
    assert lessons.begin("default", **sizes) == 2
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    assert lessons.begin("default", **sizes) == 1 and "profile quick" in capsys.readouterr().out


def test_buttons_take_the_address_from_one_place(tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "01_a.ipynb").write_text("{}")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    with pytest.raises(ValueError, match="Repository"):
        buttons.buttons(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nurls.Repository = "https://github.com/me/it"\n')
    text = buttons.buttons(tmp_path)
    assert "mybinder.org/v2/gh/me/it/main" in text and "github/me/it/blob/main/notebooks/01_a.ipynb" in text
    assert "git clone https://github.com/me/it" in text


def test_no_button_leads_to_another_repository():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    path = project.get("urls", {}).get("Repository", "nowhere").removeprefix("https://github.com/")
    for page in (ROOT / "README.md", *(ROOT / "notebooks").glob("*.*")):
        shown = re.findall(r"https://(?:mybinder\.org|colab\.research)[^\s)\\]*", page.read_text("utf-8"))
        assert all(path in link or "badge" in link for link in shown), page.name
        assert not shown or path != "nowhere", f"{page.name} has buttons, but pyproject.toml no address"


def test_teaching_states_what_is_there():
    notebooks = [json.loads(path.read_text()) for path in (ROOT / "notebooks").glob("0[1-9]*.ipynb")]
    points = sum(check["metadata"]["nbgrader"]["points"] for notebook in notebooks
                 for _, check in solutions.graded(notebook))
    assert f"{points:g} points in all" in " ".join(TEACHING.split())
    links = [link for link in re.findall(r"\]\(([^)#\s]+)\)", TEACHING) if "://" not in link]
    assert links and not [link for link in links if not (ROOT / "notebooks" / link).exists()]
