"""The README's table: made from the numbers beside the figures, current, and honest where there are none."""

import json
import re

import pytest

from spin_core.lab.results import figures
from spin_core.lab.lessons.l7_paper_figures import measure as lesson
from spin_core.lab.reproduce import comparison
from spin_core.__main__ import main
from spin_core.lab.simulate import paper


def test_the_readme_is_current():
    """If this fails: ``python -m spin_core reproduce --table``."""
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
        if document["name"] in {*comparison.ROWS, *comparison.SECOND.values()}:
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
    assert comparison.table(copy).endswith("; 0.96 (bench pipeline, turn by turn, box) |")


def test_the_heuristics_row_tells_its_own_goodput_not_its_numbers(copy):
    def halve(series):
        return [s | {"y": [y / 2 for y in s["y"]]} if s["label"] == "goodput of the heuristic over the best's" else s
                for s in series]

    cell = r"([\d.]+) of the best number's goodput at worst"
    before = float(re.search(cell, comparison.table(copy)).group(1))
    change(copy, "microbatch_heuristic_at_scale", halve)
    assert float(re.search(cell, comparison.table(copy)).group(1)) == pytest.approx(before / 2, abs=.01)


def test_what_was_replayed_or_predicted_is_called_so_and_stands_beside_what_was_served(copy):
    table = comparison.table(copy)
    assert "by predicted speed: " in table and table.count("| replayed: ") == 2 and "live" not in table

    def put(name: str, rows: list[dict], bars: dict) -> None:
        (copy / "data" / "box").mkdir(parents=True, exist_ok=True)
        report = {"name": name, "rows": rows, "notes": [], "bars": [{"name": n, "value": v} for n, v in bars.items()]}
        (copy / "data" / "box" / f"{name}.json").write_text(json.dumps(report))

    best = "SPIN over the best fixed drafter"
    put("peers", [{}], {f"{best} (a, gamma 1), batch 1, greedy": 1.2, f"{best} (b, gamma 2), batch 8, greedy": .9,
                        "SPIN over x, batch 8, greedy": 3})
    put("select-live", [{"contender": who, "vs_best_fixed": r} for who, r in (("policy spin", 1.06), ("none", .5))], {})
    cell = re.search(r"\[selection_vs_fixed\].*\| (replayed: .*) \|\n", comparison.table(copy))[1]
    assert cell.split("; ")[1:] == ["live, over the best: 1.20× at batch 1, 0.90× at batch 8 (bench peers, box, all workloads)",
                                    "live, over the best: 1.06× (bench select-live, box)"]


def test_what_padding_costs_is_told_of_both_padded_ways(copy):
    def padded(series: list[dict]) -> list[dict]:
        y = {"padded": 10, "padded_view": 5, "decomposed": 6}
        return [{"label": f"{way}, bytes", "kind": "measured", "provenance": {}, "x": [32], "y": [v]}
                for way, v in y.items()]

    change(copy, "verify_memory", padded)
    table = comparison.table(copy)
    assert "| batch 32: 40% less than gathered, 20% more than in place |" in table
    for row in ("batching_loss", "verify_latency"):
        assert re.search(rf"\[{row}\].*gathered .*in place .*\|.*gathered.*in place", table)
    change(copy, "verify_memory", lambda series: [s for s in padded(series) if "view" not in s["label"]])
    assert "| batch 32: 40% less than gathered |" in comparison.table(copy)


def test_the_heuristics_row_names_where_each_number_is_from(copy):
    change(copy, "microbatch_heuristic", lambda series: [
        s | {"y": [*s["y"][:-1], .875]} if s["label"].startswith("goodput relative") else s for s in series])
    assert comparison.table(copy).endswith("| of the best number's goodput: 0.88 (the figure's one sweep) |")


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
    assert main(["reproduce", "--table", "--output", str(copy.parent)]) == 2 and "README.md" in capsys.readouterr().err
    (copy / "README.md").write_text(f"{comparison.START}\n\n{comparison.END}\n")
    assert main(["reproduce", "--table", "--output", str(copy.parent)]) == 0
    assert "overall_goodput" in (copy / "README.md").read_text()


# ---- what lesson 7 says beside the figures


def test_spin_stands_beside_vanilla_and_the_best_fixed_drafter_where_they_were_measured():
    sets = {"chat": {"vanilla": 10, "best fixed drafter": 12, "SPIN": 9}, "mix": {"best fixed drafter": 10, "SPIN": 11}}
    assert lesson.beside_the_best({"box, batch 8": sets, "card": {"chat": {"SPIN": 1}}}) == (
        "measured, box, batch 8: SPIN over vanilla chat 0.900 (below 1 on 1 of 1); "
        "over the best fixed drafter chat 0.750, mix 1.100 (below 1 on 1 of 2)")
    assert lesson.beside_the_best({}) == ""


def test_captions_name_a_gpu_only_where_one_was_measured():
    one = lesson.Recorded("embedded models, box", 8, {"mix": {"plain": 1.0}}, {})
    assert lesson.measured_on([one]) == "the embedded models"
    assert "and on a GPU models" in lesson.measured_on([one, lesson.Recorded("LLaMA-7B shape, card", 8, one.rates, {})])


def test_ceilings_are_those_of_the_texts_that_are_served_at_scale():
    assert lesson.ceilings_at_scale("CP", 4, 2) == paper.selection_ceilings("CP", 12, 4)


def test_blank_lines_round_the_marks_do_not_keep_the_old_table(copy, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{comparison.START}\n\n| old |\n\n{comparison.END}\nafter\n")
    comparison.write(readme, copy)
    assert "| old |" not in readme.read_text() and comparison.current(readme.read_text()) == comparison.table(copy)
    assert readme.read_text().startswith("before\n") and readme.read_text().endswith("\nafter\n")
