"""The page of all figures: the paper's first, with their numbers side by side; every link leads somewhere."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from spin_core.lab.reproduce import comparison
from spin_core.lab.reproduce.index import index
from spin_core.lab.results import figures

PUBLISHED = {"label": "paper", "kind": "published", "source": "SPIN, Fig. 9", "x": [1], "y": [1.45]}
HERE = {"label": "here", "kind": "measured", "x": [1], "y": [2], "provenance": {"cpu": "Some CPU"}}


def save(folder: Path, name: str, series=(PUBLISHED,), **rest) -> None:
    rest = {"caption": "What it shows. And more."} | rest
    figures.save(name, Figure(figsize=(1, 1)), series, directory=folder, **rest)


class Page(HTMLParser):
    """The links, pictures and ids of a page whose tags are all closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.images, self.ids, self.open = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.links += [attributes["href"]] if "href" in attributes else []
        self.images += [attributes["src"]] if tag == "img" else []
        self.ids += [attributes["id"]] if "id" in attributes else []
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_papers_figures_come_first_and_every_link_exists(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "01_first.ipynb").write_text("{}")
    folder = tmp_path / "figures"
    monkeypatch.setenv("SPIN_NOTEBOOK", "01_first")
    save(folder, "a_lesson", [PUBLISHED, HERE], notes="A remark.", caption='Tokens < "words" & more')
    save(folder, "ablation", finding="Selection is not enough.")
    (folder / "bench.json").write_text('{"rows": []}')         # numbers that belong to no picture
    text = index(folder).read_text()
    page = Page(text)
    assert "SPIN, reproduced: 2 figures" in text and "bench" not in page.links
    inside = {link[1:] for link in page.links if link.startswith("#")}
    assert inside <= set(page.ids) and {"a_lesson", "ablation", "lesson-1-first"} <= inside
    assert all((folder / link).exists() for link in [*page.links, *page.images] if not link.startswith("#"))
    assert text.index('id="ablation"') < text.index('id="a_lesson"')
    assert "<h3>Selection is not enough.</h3>" in text and "<h3>Tokens &lt; &quot;words&quot; &amp; more</h3>" in text
    lesson = text[text.index('id="a_lesson"'):]
    assert "A remark." in lesson and "published: SPIN, Fig. 9; measured: Some CPU" in lesson
    assert '<span class="kind measured">' in lesson and '<span class="kind modelled">' not in lesson


def test_the_papers_numbers_stand_side_by_side_as_in_the_readme():
    """The page of the checkout and the README's table say the same of every row."""
    from spin_core.lab.bench import hypotheses
    from spin_core.lab.reproduce.index import _table

    lines, report = comparison.table().splitlines(), hypotheses.stored()
    for line in comparison.lines(comparison.Results(), report):
        cells = next(row for row in lines if row.startswith(f"| {line.row.what} |"))
        assert cells.replace("**", "").split(" | ")[1:5] == [line.published, *line.modelled.values(), line.measured]
        shown = _table([line])
        assert f"<td>{line.published}</td>" in shown and f"<td>{line.measured}</td>" in shown


def test_an_empty_folder_has_a_page_and_a_damaged_figure_is_named(tmp_path):
    assert "No figures yet" in index(tmp_path / "new").read_text()
    save(tmp_path, "ablation")
    (tmp_path / "ablation.json").write_text(json.dumps({"name": "ablation"}))
    with pytest.raises(ValueError, match="ablation.json does not describe a figure"):
        index(tmp_path)


def test_every_figure_of_the_checkout_says_its_finding():
    silent = [document["name"] for document in figures.read() if not document.get("finding")]
    assert silent == []
