"""The numbers that README states are the stored ones."""

from __future__ import annotations

import json
from collections import Counter

from spin_core.lab.provenance import ROOT

README = (ROOT / "README.md").read_text("utf-8")


def test_the_numbers_of_served_families_are_the_stored_ones():
    stored = json.loads((ROOT / "figures/data/intel-xeon/families.json").read_text("utf-8"))
    count = Counter(row["outcome"] for row in stored["rows"])
    words = " ".join(README.split())
    assert f"{count['EQUAL']} are served exactly, {count['REFUSED']} are refused with a reason, and " \
           f"{count['NOT BUILT']} could not be built" in words
    assert not count["WRONG"] and not count["CRASH"]
