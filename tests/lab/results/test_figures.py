"""Figures: numbers and picture together, all or nothing, the same bytes every time."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ElementTree

import matplotlib
import numpy as np
import pytest
import torch

from spin_core.lab.results import figures

matplotlib.use("Agg")
from matplotlib.figure import Figure  # noqa: E402  (after the choice of a backend)

PUBLISHED = {"label": "paper", "kind": "published", "source": "SPIN, Fig. 9", "x": [1, 2], "y": [1.45, 1.99]}


def picture() -> Figure:
    fig = Figure(figsize=(3, 2))
    axes = fig.subplots()
    axes.plot([1, 2], [1.45, 1.99], label="paper")
    axes.fill_between([1, 2], [1, 1], [2, 2], alpha=0.2)
    axes.legend()
    return fig


def save(folder, name="ablation", series=(PUBLISHED,), caption="What it shows.", **rest):
    return figures.save(name, picture(), series, caption=caption, directory=folder, **rest)


def test_writes_numbers_and_pictures(tmp_path):
    path = save(tmp_path / "new folder", notes="a remark", finding="It grows.")
    assert path == tmp_path / "new folder" / "ablation.json"
    document = json.loads(path.read_text())
    assert {*document} == {*figures.FIELDS, "finding"} and document["finding"] == "It grows."
    assert document["caption"] == "What it shows." and document["notes"] == "a remark"
    assert document["series"] == [PUBLISHED]
    assert ElementTree.parse(path.with_suffix(".svg")).getroot().tag.endswith("svg")
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert sorted(os.listdir(path.parent)) == ["ablation.json", "ablation.png", "ablation.svg"]


def test_same_figure_same_bytes(tmp_path):
    first, second = save(tmp_path / "a"), save(tmp_path / "b")
    for end in (".svg", ".png", ".json"):
        assert first.with_suffix(end).read_bytes() == second.with_suffix(end).read_bytes()


def test_measured_numbers_get_a_provenance_and_keep_their_own(tmp_path):
    ours = {"label": "here", "kind": "measured", "x": ["a"], "y": [1]}
    theirs = ours | {"label": "there", "provenance": {"gpu": "another machine"}}
    modelled = ours | {"label": "V100", "kind": "modelled", "source": "profile v100"}
    first, second, third = json.loads(save(tmp_path, series=[ours, theirs, modelled]).read_text())["series"]
    assert first["provenance"]["versions"]["torch"] == torch.__version__
    assert second["provenance"] == {"gpu": "another machine"}
    assert "provenance" not in third


def test_arrays_and_tensors_become_plain_numbers(tmp_path):
    series = PUBLISHED | {"x": np.arange(2), "y": torch.tensor([0.5, 0.25]), "error": (np.float32(0.5), None)}
    stored = json.loads(save(tmp_path, series=[series]).read_text())["series"][0]
    assert stored["x"] == [0, 1] and stored["y"] == [0.5, 0.25] and stored["error"] == [0.5, None]


@pytest.mark.parametrize("change, message", [
    ({"kind": "guessed"}, "published, modelled, measured"),
    ({"source": ""}, "published numbers need a source"),
    ({"kind": "modelled", "source": None}, "modelled numbers need a source"),
    ({"provenance": {}}, "not a provenance"),
    ({"y": [1]}, "x has 2 values, y has 1"),
    ({"y": [1.0, float("nan")]}, "use None for a missing value"),
    ({"y": [1.0, float("inf")]}, "use None for a missing value"),
    ({"y": [1.0, "two"]}, "y must hold numbers"),
    ({"y": 1.0}, "y must be a list"),
    ({"extra": object()}, "cannot be written to JSON"),
])
def test_bad_series_are_refused_and_named(tmp_path, change, message):
    with pytest.raises(ValueError, match=message) as error:
        save(tmp_path, series=[PUBLISHED, PUBLISHED | change])
    assert "figure ablation, series 1 ('paper')" in str(error.value)
    assert not list(tmp_path.iterdir()), "nothing half written"


@pytest.mark.parametrize("rest, message", [
    ({"name": "../up"}, "figure name"),
    ({"name": ""}, "figure name"),
    ({"caption": " "}, "needs a caption"),
    ({"series": []}, "no series"),
    ({"series": [{"label": "x", "kind": "measured", "x": []}]}, "needs 'y'"),
])
def test_bad_figures_are_refused(tmp_path, rest, message):
    with pytest.raises(ValueError, match=message):
        save(tmp_path, **rest)


def test_a_failing_picture_leaves_the_earlier_figure(tmp_path, monkeypatch):
    path = save(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def fails(self, target, **_):
        if str(target).endswith(".png"):
            raise OSError("disk full")
        open(target, "w").close()

    monkeypatch.setattr(Figure, "savefig", fails)
    with pytest.raises(OSError, match="disk full"):
        save(tmp_path, caption="A newer one.")
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == before


@pytest.mark.parametrize("text, message", [
    ("{", "Expecting"), ('{"name": "ablation"}', "missing schema"), ("[]", "missing")])
def test_a_damaged_document_is_named(tmp_path, text, message):
    save(tmp_path).write_text(text)
    with pytest.raises(ValueError, match=f"ablation.json does not describe a figure: .*{message}"):
        figures.read(tmp_path)


def test_read_orders_by_notebook(tmp_path, monkeypatch):
    monkeypatch.setenv("SPIN_PROFILE", "quick")
    monkeypatch.setenv("SPIN_NOTEBOOK", "02_later")
    save(tmp_path, name="a")
    monkeypatch.setenv("SPIN_NOTEBOOK", "01_first")
    save(tmp_path, name="b")
    assert [(d["name"], d["notebook"], d["profile"]) for d in figures.read(tmp_path)] == [
        ("b", "01_first", "quick"), ("a", "02_later", "quick")]


def test_default_directory_is_the_checkouts(tmp_path, monkeypatch):
    assert figures.default_directory() == figures.provenance.ROOT / "figures"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(figures.provenance, "ROOT", tmp_path / "site-packages")
    assert figures.default_directory() == tmp_path / "figures"
