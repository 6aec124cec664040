"""The named sets are what their README says, and every way of reading or misreading a file is defined."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import types
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spin_core.workloads
from spin_core.workloads import NAMES, WorkloadError, load_workload

FOLDER = Path(spin_core.workloads.__file__).parent
BASE = ("instructions", "personas", "chat")


@pytest.fixture(scope="module")
def sets():
    return {name: load_workload(name) for name in NAMES}


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


# --- the named sets -------------------------------------------------------------------------------

@pytest.mark.parametrize("name", BASE)
def test_counts_and_disjoint_splits(sets, name):
    workload = sets[name]
    train, test = workload.split("train"), workload.split("test")
    assert len(workload) == len(list(workload)) == 180
    assert (len(train), len(test)) == (108, 72)
    assert len({p.id for p in workload}) == 180
    assert not {p.text for p in train} & {p.text for p in test}
    assert {p.workload for p in workload} == {name}


# What was measured on a test split is only comparable while the split stays: never change one by accident.
SPLITS = {
    "instructions": "81ced6a1316fe857",
    "personas": "4886c7f7ca2114d8",
    "chat": "502bf5e3ade03f66",
}


@pytest.mark.parametrize("name", BASE)
def test_splits_are_fixed(sets, name):
    lines = sorted(f"{p.id} {p.split} {p.text}" for p in sets[name])
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] == SPLITS[name]


def test_mix_interleaves_and_keeps_splits(sets):
    mix = sets["mix"]
    home = {p.id: p for name in BASE for p in sets[name]}
    assert all(home[p.id] == p for p in mix)
    assert len({p.id for p in mix}) == len(mix) == 540
    for part in ("train", "test"):
        assert [p.workload for p in mix.split(part)][:6] == list(BASE) * 2
        assert {p.id for p in mix.split(part)} == {p.id for n in BASE for p in sets[n].split(part)}
    assert len(mix.split("test")) >= 200  # enough requests for replayed policies


@pytest.mark.parametrize("name", BASE)
@pytest.mark.parametrize("part", ("train", "test"))
def test_variety(sets, name, part):
    """Short and long prompts, many categories, none of them dominant, and many ways to begin."""
    prompts = list(sets[name].split(part))
    lengths = np.array([len(p.text.split()) for p in prompts])
    low, middle, high = np.quantile(lengths, [0.1, 0.5, 0.9])
    assert low <= 25 and 15 <= middle <= 45 and high >= 45 and lengths.max() >= 120
    assert high >= 2 * low
    categories = Counter(p.category for p in prompts)
    assert len(categories) >= 10
    assert max(categories.values()) <= len(prompts) / 5 and min(categories.values()) >= 3
    openings = Counter(tuple(words(p.text)[:4]) for p in prompts)
    assert openings.most_common(1)[0][1] <= len(prompts) / 8


def test_categories_are_split_alike(sets):
    for name in BASE:
        train, test = (Counter(p.category for p in sets[name].split(s)) for s in ("train", "test"))
        for category in train | test:
            share = test[category] / (train[category] + test[category])
            assert 0.25 <= share <= 0.55, (name, category)


def test_chat_has_conversations_in_progress(sets):
    longer = [p for p in sets["chat"] if len(p.dialogue) > 1]
    assert len(longer) >= 40 and any(len(p.dialogue) >= 5 for p in longer)
    for part in ("train", "test"):
        assert sum(p.split == part for p in longer) >= 12
    for prompt in longer:
        roles = [m["role"] for m in prompt.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


def test_prompts_are_clean_text(sets):
    for prompt in sets["mix"]:
        assert len(prompt.text) < 6000, prompt.id  # well inside a context of 8,192 tokens
        for message in prompt.messages:
            text = message["content"]
            assert text == text.strip() and text.replace("\n", "").isprintable(), prompt.id
            assert not re.search(r"[\t\r\ufffd]|\n\n\n| +$", text, flags=re.MULTILINE), prompt.id


def test_no_near_duplicates(sets):
    """No eight words in a row are shared by two prompts of any set or split, and no two prompts share 35 % of
    their five-character pieces (this catches short prompts, and languages written without spaces)."""
    prompts = list(sets["mix"])
    owners: dict[tuple[str, ...], str] = {}
    for prompt in prompts:
        ws = words(prompt.text)
        for gram in {tuple(ws[i:i + 8]) for i in range(len(ws) - 7)}:
            assert owners.setdefault(gram, prompt.id) == prompt.id, (gram, prompt.id, owners[gram])
    pieces = []
    for prompt in prompts:
        text = " ".join(words(prompt.text))
        pieces.append({text[i:i + 5] for i in range(max(1, len(text) - 4))})
    having: dict[str, list[int]] = defaultdict(list)
    for i, own in enumerate(pieces):
        for piece in own:
            having[piece].append(i)
    shared = np.zeros((len(prompts), len(prompts)))
    for members in having.values():
        shared[np.ix_(members, members)] += 1
    size = np.diag(shared)
    jaccard = shared / (size[:, None] + size[None, :] - shared) - np.eye(len(prompts))
    worst = np.unravel_index(jaccard.argmax(), jaccard.shape)
    assert jaccard.max() < 0.35, [prompts[i].text for i in worst]


def test_readme_counts(sets):
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name in NAMES:
        train, test = len(sets[name].split("train")), len(sets[name].split("test"))
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        assert f"| {train} / {test} |" in row
        if name in BASE:
            lengths = [len(p.text.split()) for p in sets[name]]
            assert f"| {np.median(lengths):.0f} ({max(lengths)}) |" in row
    assert f"{sum(len(p.dialogue) > 1 for p in sets['chat'])} are conversations in progress" in text


# --- choosing -------------------------------------------------------------------------------------

def test_split_limit_and_seed(sets):
    test = sets["chat"].split("test")
    assert load_workload("chat", "test") == test
    assert load_workload("chat", "test", limit=5).prompts == test.prompts[:5]
    assert len(load_workload("chat", "test", limit=10_000)) == 72
    shuffled = load_workload("chat", "test", seed=3)
    assert shuffled == load_workload("chat", "test", seed=3)
    assert shuffled != load_workload("chat", "test", seed=4)
    assert shuffled.prompts != test.prompts and set(shuffled) == set(test)
    # an order is a function of seed and ids: leaving prompts out does not reorder the others
    whole = [p for p in load_workload("chat", seed=3) if p.split == "test"]
    assert tuple(whole) == shuffled.prompts
    assert load_workload("chat", "test", limit=5, seed=3).prompts == shuffled.prompts[:5]


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_must_be_positive(limit):
    with pytest.raises(WorkloadError, match=f"at least 1, got {limit}"):
        load_workload("chat", limit=limit)


def test_unknown_split_lists_the_known():
    with pytest.raises(WorkloadError, match="no split 'dev'; it has: test, train"):
        load_workload("mix", split="dev")


@pytest.mark.parametrize("name", ["Chat", "alpaca", "a/b/c", ""])
def test_unknown_name_lists_the_known(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = "is a directory|Is a directory" if name == "" else "instructions, personas, chat, mix"
    with pytest.raises((WorkloadError, IsADirectoryError), match=expected):
        load_workload(name)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="gone.jsonl"):
        load_workload(tmp_path / "gone.jsonl")
    with pytest.raises(FileNotFoundError, match="gone.jsonl"):
        load_workload("gone.jsonl")


# --- formats --------------------------------------------------------------------------------------

def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    return path


def test_every_format_in_one_file(tmp_path):
    path = write(
        tmp_path / "own.jsonl",
        {"prompt": "One?\nTwo?"},
        {"instruction": "Sort.", "input": "b a", "output": "a b"},
        {"instruction": "Sing.", "input": ""},
        {"instruction": "Dance.", "input": None},
        {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."], "reference": ["x"]},
        {"id": "g1", "split": "train", "conversations": [
            {"from": "gpt", "value": "the end of an earlier piece"}, {"from": "human", "value": "Hi"},
            {"from": "gpt", "value": ""}, {"from": "human", "value": "Again"},
            {"from": "gpt", "value": "Yes"}]},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]},
    )
    p = load_workload(path).prompts
    assert [q.text for q in p[:5]] == ["One?\nTwo?", "Sort.\n\nb a", "Sing.", "Dance.", "Write."]
    assert p[0].messages == [{"role": "user", "content": "One?\nTwo?"}]
    assert p[4].follow_ups == ("Rewrite.",) and (p[4].id, p[4].category) == ("81", "writing")
    assert p[5].dialogue == (("user", "Hi"), ("assistant", ""), ("user", "Again"))
    assert p[5].text == "User: Hi\n\nAssistant: \n\nUser: Again"
    assert (p[5].id, p[5].split) == ("g1", "train")
    assert p[6].messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    assert (p[0].id, p[0].category, p[0].split, p[0].workload) == ("own-0001", "other", "test", "own")
    assert load_workload(path, "train").prompts == (p[5],)


@pytest.mark.parametrize("indent", [None, 4])
def test_published_arrays(tmp_path, indent):
    alpaca = [{"instruction": "Name it.", "input": "", "output": "It."},
              {"instruction": "Add.", "input": "2 [and] 3", "output": "5"}]
    path = tmp_path / "alpaca_data.json"
    path.write_text("\n " + json.dumps(alpaca, indent=indent) + "\n", encoding="utf-8")
    assert [p.text for p in load_workload(path)] == ["Name it.", "Add.\n\n2 [and] 3"]


def test_byte_order_mark_crlf_and_blank_lines(tmp_path):
    path = tmp_path / "dos.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n{"prompt": "b"}\r\n')
    assert [p.text for p in load_workload(path)] == ["a", "b"]


def test_named_sets_are_readable_as_files(sets):
    assert load_workload(str(FOLDER / "chat.jsonl")) == sets["chat"]


# --- bad input ------------------------------------------------------------------------------------

USER = {"from": "human", "value": "x"}
BAD = {
    "cut off": ('{"prompt": "a"', "not valid JSON"),
    "no JSON": ("prompt: a", "not valid JSON"),
    "too deep": ('{"prompt": ' + "[" * 200_000, "not valid JSON"),
    "string": ('"hello"', "expected a JSON object, got a string"),
    "number": ("3", "expected a JSON object, got a number"),
    "null": ("null", "expected a JSON object, got null"),
    "no key": ('{"text": "a", "id": 7}', "no prompt.*'instruction'.*found 'text', 'id'"),
    "no keys": ("{}", "no prompt.*found none"),
    "null prompt": ('{"prompt": null}', r"no prompt: .*found 'prompt' \(null\)$"),
    "empty": ('{"prompt": ""}', "'prompt' is empty"),
    "blank": ('{"prompt": " \\n\\t"}', "'prompt' is empty"),
    "type": ('{"prompt": 5}', "'prompt' must be a string, got a number"),
    "surrogate": ('{"prompt": "\\ud800"}', "surrogate"),
    "alpaca empty": ('{"instruction": "", "input": "x"}', "'instruction' is empty"),
    "alpaca type": ('{"instruction": "x", "input": ["y"]}', "'input' must be a string, got a list"),
    "turns type": ('{"turns": "x"}', "'turns' must be a list, got a string"),
    "turns empty": ('{"turns": []}', "'turns' is empty"),
    "turn empty": ('{"turns": ["x", " "]}', "turn 2 is empty"),
    "turn type": ('{"turns": [{"x": 1}]}', "turn 1 must be a string, got an object"),
    "conversation empty": ('{"conversations": []}', "'conversations' is empty"),
    "conversation type": ('{"conversations": {"from": "human"}}', "must be a list, got an object"),
    "conversation item": ('{"conversations": ["x"]}', "turn 1 of 'conversations' must be an object"),
    "conversation keys": ('{"conversations": [{"role": "user", "content": "x"}]}', "with 'from' and 'value'"),
    "conversation role": ('{"conversations": [{"from": "owl", "value": "x"}]}', "by 'owl'; known.*human"),
    "conversation value": ('{"conversations": [{"from": "user", "value": null}]}', "'value' in turn 1.*null"),
    "no user": ('{"conversations": [{"from": "gpt", "value": "x"}]}', "has no user turn"),
    "last turn empty": (json.dumps({"conversations": [USER, {"from": "human", "value": ""}]}),
                        "last user turn is empty"),
    "messages parts": ('{"messages": [{"role": "user", "content": [{"type": "text"}]}]}',
                       "'content' in turn 1 of 'messages' must be a string, got a list"),
    "id type": ('{"prompt": "a", "id": true}', "'id' must be a string, got true or false"),
    "id empty": ('{"prompt": "a", "id": ""}', "'id' is empty"),
    "category type": ('{"prompt": "a", "category": 1}', "'category' must be a string"),
    "split type": ('{"prompt": "a", "split": []}', "'split' must be a string, got a list"),
    "id twice": ('{"prompt": "a", "id": "first"}', "id 'first' was used before, at .*bad.jsonl:1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_line_is_named(tmp_path, case):
    line, reason = BAD[case]
    path = tmp_path / "bad.jsonl"
    path.write_text(f'{{"prompt": "a", "id": "first"}}\n\n{line}\n{{"prompt": "b"}}\n', encoding="utf-8")
    with pytest.raises(WorkloadError, match=reason) as caught:
        load_workload(path)
    assert str(caught.value).startswith(f"{path}:3: ")


@pytest.mark.parametrize("text, place, reason", [
    ('[{"prompt": "a"},\n{"prompt": ""}]', ", item 2", "is empty"),
    ('[\n\n  {"prompt": "a"},\n  {"prompt":\n     "b",\n   "id": 2.5}]', ", item 2", "'id' must be a string"),
    ('[{"prompt": "a"},\n\n{"prompt": }]', ":3", "not valid JSON"),
    ('[{"prompt": "a"}\n{"prompt": "b"}]', ":2", "',' delimiter"),
    ('[{"prompt": "a"},\n', ":2", "not valid JSON"),
    ('[{"prompt": "a"}]\n{"prompt": "b"}', ":2", "Extra data"),
    ("[\n[]]", ", item 1", "expected a JSON object, got a list"),
    ("[\n" + "[" * 200_000, ":1", "not valid JSON"),
])
def test_bad_item_of_an_array_is_named(tmp_path, text, place, reason):
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(WorkloadError, match=re.escape(reason)) as caught:
        load_workload(path)
    assert str(caught.value).startswith(f"{path}{place}: ")


def test_bad_utf8_is_named(tmp_path):
    path = tmp_path / "latin.jsonl"
    path.write_bytes('{"prompt": "a"}\n{"prompt": "Grüße"}\n'.encode("latin-1"))
    with pytest.raises(WorkloadError, match="latin.jsonl:2: not UTF-8 .byte 0xfc"):
        load_workload(path)


@pytest.mark.parametrize("text", ["", "\n \n", "[]", "[\n]\n"])
def test_empty_file(tmp_path, text):
    path = tmp_path / "void.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(WorkloadError, match="void.jsonl: holds no prompt"):
        load_workload(path)


# --- properties -----------------------------------------------------------------------------------

anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
something = anything.filter(str.strip)
conversation = st.lists(st.tuples(anything, anything), max_size=3)


@st.composite
def record_and_dialogue(draw):
    """A record in one of the formats, and what must be read from it."""
    kind = draw(st.sampled_from(["prompt", "alpaca", "turns", "conversations", "messages"]))
    text = draw(something)
    user = (("user", text),)
    if kind == "prompt":
        return {"prompt": text}, user
    if kind == "alpaca":
        more = draw(anything)
        whole = f"{text}\n\n{more}" if more.strip() else text
        return {"instruction": text, "input": more}, (("user", whole),)
    if kind == "turns":
        return {"turns": [text, *draw(st.lists(something, max_size=2))]}, user
    history = [turn for ask, answer in draw(conversation) for turn in (("user", ask), ("assistant", answer))]
    answers = draw(st.lists(anything.map(lambda a: ("assistant", a)), max_size=1))
    turns = [*history, *user, *answers]
    if kind == "messages":
        record = {"messages": [{"role": role, "content": content} for role, content in turns]}
    else:
        names = {"user": "human", "assistant": "gpt"}
        record = {"conversations": [{"from": names[role], "value": content} for role, content in turns]}
    return record, (*history, *user)


common = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@common
@given(pairs=st.lists(record_and_dialogue(), min_size=1, max_size=6), ascii_only=st.booleans(),
       form=st.sampled_from(["jsonl", "array", "indented"]))
def test_round_trip(tmp_path, pairs, ascii_only, form):
    records = [r for r, _ in pairs]
    path = tmp_path / "some.json"
    if form == "jsonl":
        text = "\n".join(json.dumps(r, ensure_ascii=ascii_only) for r in records)
    else:
        text = json.dumps(records, ensure_ascii=ascii_only, indent=2 if form == "indented" else None)
    path.write_bytes(text.encode())
    workload = load_workload(path)
    assert [p.dialogue for p in workload] == [d for _, d in pairs]
    assert len({p.id for p in workload}) == len(pairs)
    assert all(p.messages[-1] == {"role": "user", "content": p.dialogue[-1][1]} for p in workload)


@common
@given(pairs=st.lists(record_and_dialogue(), max_size=5), where=st.integers(0, 5),
       bad=st.sampled_from(sorted(BAD.keys() - {"too deep", "id twice"})))
def test_bad_line_is_named_wherever_it_stands(tmp_path, pairs, where, bad):
    lines = [json.dumps(r) for r, _ in pairs]
    where = min(where, len(lines))
    lines.insert(where, BAD[bad][0])
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(WorkloadError) as caught:
        load_workload(path)
    assert str(caught.value).startswith(f"{path}:{where + 1}: ")


json_like = st.text(alphabet='[]{}",: \\nprmtu\n1', max_size=60).map(str.encode)


@common
@given(data=st.one_of(st.binary(max_size=60), json_like))
def test_any_bytes_are_read_or_refused(tmp_path, data):
    path = tmp_path / "noise.jsonl"
    path.write_bytes(data)
    try:
        assert len(load_workload(path)) > 0
    except WorkloadError as error:
        assert str(path) in str(error)


# --- the hub --------------------------------------------------------------------------------------

def fake_hub(monkeypatch, load):
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load))


def test_hub_name(monkeypatch):
    rows = {"train": [{"instruction": "a", "input": None}, {"instruction": "b", "input": "c"}],
            "test": [{"instruction": "d", "input": ""}]}
    asked = []
    fake_hub(monkeypatch, lambda name: asked.append(name) or rows)
    workload = load_workload("org/some-set")
    assert asked == ["org/some-set"] and workload.name == "org/some-set"
    assert [(p.id, p.split, p.text) for p in workload] == [
        ("org/some-set-train-0001", "train", "a"), ("org/some-set-train-0002", "train", "b\n\nc"),
        ("org/some-set-test-0001", "test", "d")]


def test_hub_bad_row_is_named(monkeypatch):
    fake_hub(monkeypatch, lambda name: {"train": [{"prompt": "a"}, {"prompt": " "}]})
    with pytest.raises(WorkloadError, match=r"org/set\[train\] row 2: 'prompt' is empty"):
        load_workload("org/set")


def test_hub_out_of_reach(monkeypatch):
    def load(name):
        raise ConnectionError("no route to host")

    fake_hub(monkeypatch, load)
    with pytest.raises(WorkloadError, match="cannot fetch 'org/set'.*no route to host.*hub reachable"):
        load_workload("org/set")


def test_hub_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(WorkloadError, match="'org/set' is no file here.*pip install datasets"):
        load_workload("org/set")
