"""The numbers that README states are the stored ones."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter

import pytest

from spin_core.lab.bench.drafters import ratio_error
from spin_core.lab.provenance import ROOT
from spin_core.lab.simulate.recording import Recording, verifications

README = (ROOT / "README.md").read_text("utf-8")
DRAFTERS = (ROOT / "spin_core/zoo/drafters/README.md").read_text("utf-8")


def test_the_numbers_of_served_families_are_the_stored_ones():
    stored = json.loads((ROOT / "figures/data/intel-xeon/families.json").read_text("utf-8"))
    count = Counter(row["outcome"] for row in stored["rows"])
    words = " ".join(README.split())
    assert f"{count['EQUAL']} are served exactly, {count['REFUSED']} are refused with a reason, and " \
           f"{count['NOT BUILT']} could not be built" in words
    assert not count["WRONG"] and not count["CRASH"]


def test_tokens_per_verification_of_the_drafters_are_the_recorded_ones():
    """The recording's first turns are the answers that `bench drafters` counts on."""
    recording, counted = Recording.load(), {}
    first = recording.take([i for i, name in enumerate(recording.ids) if int(name.split("-")[1]) < 72])
    assert len(first) == 216
    for arm, proposed, accepted in zip(first.arms, first.proposed.tolist(), first.accepted.tolist()):
        steps = [[a + 1 for _, _, a in verifications(proposed[start:end], accepted[start:end], 4)]
                 for start, end in itertools.pairwise(first.starts.tolist())]
        counted[arm] = sum(map(sum, steps)) / sum(map(len, steps)), ratio_error([*map(sum, steps)], [*map(len, steps)])
    rows = re.findall(r"^\| `([^`]+)` .*\| ([\d.]+) ± ([\d.]+) \|", DRAFTERS, re.MULTILINE)
    assert {name for name, _, _ in rows} == {*recording.drafters, "ngram+table-5g"}
    for name, tokens, error in rows:
        assert (float(tokens), float(error)) == pytest.approx(counted[name], abs=.005), name
    assert f"{counted['ngram+table-5g'][0]:.2f} tokens per verification" in README
