"""Files that appear whole or not at all."""

from __future__ import annotations

import json

import pytest

from spin_core.files import save_json


def test_a_saved_document_is_whole_and_strict_json(tmp_path):
    path = tmp_path / "new" / "numbers.json"
    save_json(path, {"a": [1.5, float("nan"), float("inf")], "b": {"c": (1, None)}})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {"a": [1.5, None, None], "b": {"c": [1, None]}}
    with pytest.raises(TypeError):
        save_json(path, {"a": object()})
    assert json.loads(path.read_text())["b"] == {"c": [1, None]}, "what was there is still there"
