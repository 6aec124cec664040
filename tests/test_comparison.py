"""The README's table: made from the numbers beside the figures, current, and honest where there are none."""

import json
import re

import pytest

from spin_core import figures
from spin_core.reproduce import comparison
from spin_core.reproduce.__main__ import main


def test_the_readme_is_current():
    """If this fails: ``python -m spin_core.reproduce --table``."""
    assert comparison.current(comparison.README.read_text("utf-8")) == comparison.table()


def test_every_row_names_a_figure_and_what_was_published_and_measured():
    lines = comparison.table().splitlines()[2:]
    assert len(lines) == len(comparison.ROWS) == 10
    for line in lines:
        name, _, published, modelled, _ = re.fullmatch(r"\| (.+) \| (.+) \| (.+) \| (.+) \| (.+) \|", line).groups()
        assert re.fullmatch(r"\[(\w+)\]\(figures/\1\.svg\)", name) and published != "–", line
    assert sum("| – |" in line for line in lines) <= 5


@pytest.fixture
def copy(tmp_path):
    """The checkout's figures and README in a folder of their own."""
    folder = tmp_path / "figures"
    folder.mkdir()
    for document in figures.read():
        if document["name"] in {*comparison.ROWS, *comparison.LARGE.values()}:
            (folder / f"{document['name']}.json").write_text(json.dumps(document))
            (folder / f"{document['name']}.svg").write_text("<svg/>")
    return folder


def change(folder, name: str, edit) -> None:
    path = folder / f"{name}.json"
    document = json.loads(path.read_text())
    document["series"] = edit(document["series"])
    path.write_text(json.dumps(document))


def test_numbers_are_read_off_the_series(copy, tmp_path):
    def double(series):
        return [s | {"y": [y * 2 for y in s["y"]]} if s["label"].startswith("SPIN, ") else s for s in series]

    before = re.search(r"\| ([\d.]+)× to ([\d.]+)× \|", comparison.table(copy)).groups()
    change(copy, "overall_goodput", double)
    after = re.search(r"\| ([\d.]+)× to ([\d.]+)× \|", comparison.table(copy)).groups()
    assert [float(a) for a in after] == pytest.approx([2 * float(b) for b in before], abs=0.02)
    readme = tmp_path / "README.md"
    readme.write_text(f"# A\n{comparison.START}\nold\n{comparison.END}\nrest\n")
    comparison.write(readme, copy)
    assert comparison.current(readme.read_text()) == comparison.table(copy) and readme.read_text().endswith("\nrest\n")


def test_measured_cells_say_where(copy):
    def series(label: str, y: list) -> dict:
        return {"label": label, "kind": "measured", "provenance": {}, "x": ["chat", "mix"], "y": y}

    change(copy, "overall_goodput", lambda old: [
        *(s for s in old if s["kind"] != "measured"),
        series("SPIN, embedded models, box, tokens/s", [12, 15]), series("vanilla, embedded models, box, tokens/s", [10, 10]),
        series("SPIN, LLaMA-7B shape, card, tokens/s", [30, None]), series("vanilla, LLaMA-7B shape, card, tokens/s", [20, None]),
        series("SPIN, unfinished, tokens/s", [1, 1])])
    assert "| 1.20× to 1.50× (embedded models, box); 1.50× to 1.50× (LLaMA-7B shape, card) |" in comparison.table(copy)
    (copy / "data" / "box").mkdir(parents=True)
    bar = {"name": "goodput of the heuristic over the best fixed count", "value": .961}
    (copy / "data" / "box" / "p.json").write_text(json.dumps({"name": "pipeline", "rows": [{}], "notes": [], "bars": [bar]}))
    assert comparison.table(copy).endswith("| 0.96 of the best number's goodput (box) |")


def test_the_heuristics_row_tells_its_own_goodput_not_its_numbers(copy):
    def halve(series):
        return [s | {"y": [y / 2 for y in s["y"]]} if s["label"] == "goodput of the heuristic over the best's" else s
                for s in series]

    cell = r"([\d.]+) of the best number's goodput at worst"
    before = float(re.search(cell, comparison.table(copy)).group(1))
    change(copy, "microbatch_heuristic_at_scale", halve)
    assert float(re.search(cell, comparison.table(copy)).group(1)) == pytest.approx(before / 2, abs=.01)


def test_a_series_that_is_not_there_is_a_dash_and_a_figure_an_error(copy, tmp_path):
    change(copy, "ablation",
           lambda series: [s for s in series if s["label"] != "CP, LLaMA-7B" or s["kind"] == "published"])
    assert re.search(r"\[ablation\].*1\.45× → 1\.81× → 1\.99× \| – \|", comparison.table(copy))
    (copy / "ablation.json").unlink()
    with pytest.raises(ValueError, match="needs the figures ablation"):
        comparison.table(copy)
    with pytest.raises(ValueError, match="no table between"):
        comparison.current("# nothing")


def test_the_command_writes_it(copy, monkeypatch, capsys):
    monkeypatch.setattr(comparison, "README", copy / "README.md")
    monkeypatch.setattr(comparison.write, "__defaults__", (copy / "README.md", None))
    assert main(["--table", "--output", str(copy.parent)]) == 2 and "README.md" in capsys.readouterr().err
    (copy / "README.md").write_text(f"{comparison.START}\n\n{comparison.END}\n")
    assert main(["--table", "--output", str(copy.parent)]) == 0
    assert "overall_goodput" in (copy / "README.md").read_text()
