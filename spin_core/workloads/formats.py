"""Read prompts from the JSON that prompt sets are published in.

A file is JSONL (one object a line) or one JSON array of objects. Each object is read by the first of these
keys that it has, so that a file may even mix them:

===============  ==========================================================================================
``prompt``       a string
``instruction``  Alpaca: the instruction and, where it is not empty, a blank line and the ``input``
``turns``        MT-Bench, Spec-Bench: user turns only; the first is the prompt, the others its follow-ups
``conversations``  ShareGPT: ``[{"from": "human", "value": ...}, {"from": "gpt", ...}, ...]``
``messages``     chat templates and this package: ``[{"role": "user", "content": ...}, ...]``
===============  ==========================================================================================

A conversation is cut after its last user turn, since what follows is an answer, and loses answers before its
first user turn, since published ShareGPT files hold pieces of longer conversations.
Optional keys: ``id`` (or ``question_id``; else made from the file's name and the record's number),
``category`` (else "other"), ``split`` (else "test": a set without splits is one to measure on). A null counts
as a missing key.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from .prompt import Prompt, WorkloadError

ROLES = {"system": "system", "user": "user", "human": "user",
         "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant",
         "bing": "assistant", "bard": "assistant"}


def read_file(path: Path) -> tuple[Prompt, ...]:
    """All prompts of a file, in order; the file's stem is their set's name.

    Raises WorkloadError with ``file:line: reason`` (or ``file, item n: reason``) for the first record that cannot be
    read, and for a file without records; OSError where the file itself cannot be opened.
    """
    data = path.read_bytes()
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise WorkloadError(f"{path}:{line}: not UTF-8 (byte 0x{data[error.start]:02x})") from None
    records = _array(text, path) if text.lstrip().startswith("[") else _lines(text, path)
    return parse_records(records, workload=path.stem, prefix=path.stem, source=str(path))


def parse_records(records: Iterable[tuple[str, object]], *, workload: str, prefix: str, source: str,
                  split: str = "test") -> tuple[Prompt, ...]:
    """Prompts from pairs (where, decoded JSON): ``where`` begins every message, ``prefix`` made-up ids.

    Raises WorkloadError for a bad record, for two records with one id and, naming ``source``, for no record.
    """
    prompts: list[Prompt] = []
    places: dict[str, str] = {}
    for number, (where, record) in enumerate(records, start=1):
        try:
            prompt = _prompt(record, workload, f"{prefix}-{number:04d}", split)
            if prompt.id in places:
                raise WorkloadError(f"id {prompt.id!r} was used before, at {places[prompt.id]}")
        except WorkloadError as error:
            raise WorkloadError(f"{where}: {error}") from None
        places[prompt.id] = where
        prompts.append(prompt)
    if not prompts:
        raise WorkloadError(f"{source}: holds no prompt")
    return tuple(prompts)


def _lines(text: str, path: Path) -> Iterator[tuple[str, object]]:
    # split("\n"), not splitlines(): a JSON string may hold U+2028 and its like
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}:{number}"
            try:
                yield where, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise WorkloadError(f"{where}: not valid JSON ({error})") from None


def _array(text: str, path: Path) -> Iterator[tuple[str, object]]:
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{path}:{getattr(error, 'lineno', 1)}: not valid JSON ({getattr(error, 'msg', error)})"
                            ) from None
    yield from ((f"{path}, item {number}", item) for number, item in enumerate(items, start=1))


def _prompt(record: object, workload: str, default_id: str, default_split: str) -> Prompt:
    if not isinstance(record, dict):
        raise WorkloadError(f"expected a JSON object, got {_kind(record)}")
    follow_ups: tuple[str, ...] = ()
    if record.get("prompt") is not None:
        dialogue = (("user", _text(record["prompt"], "'prompt'")),)
    elif record.get("instruction") is not None:
        instruction = _text(record["instruction"], "'instruction'")
        given = _text(_or(record.get("input"), ""), "'input'", may_be_empty=True)
        dialogue = (("user", f"{instruction}\n\n{given}" if given.strip() else instruction),)
    elif record.get("turns") is not None:
        turns = [_text(t, f"turn {n}") for n, t in enumerate(_list(record["turns"], "'turns'"), start=1)]
        dialogue, follow_ups = (("user", turns[0]),), tuple(turns[1:])
    elif record.get("conversations") is not None:
        dialogue = _dialogue(record["conversations"], "conversations", "from", "value")
    elif record.get("messages") is not None:
        dialogue = _dialogue(record["messages"], "messages", "role", "content")
    else:
        has = ", ".join(f"{key!r}{' (null)' * (value is None)}" for key, value in record.items()) or "none"
        raise WorkloadError("no prompt: expected the key 'prompt', 'instruction', 'turns', 'conversations' "
                            f"or 'messages', found {has}")
    name = _or(record.get("id"), _or(record.get("question_id"), default_id))
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)
    return Prompt(id=_text(name, "'id'"), dialogue=dialogue,
                  category=_text(_or(record.get("category"), "other"), "'category'"),
                  split=_text(_or(record.get("split"), default_split), "'split'"),
                  workload=workload, follow_ups=follow_ups)


def _dialogue(items: object, key: str, role_key: str, text_key: str) -> tuple[tuple[str, str], ...]:
    turns: list[tuple[str, str]] = []
    for number, item in enumerate(_list(items, repr(key)), start=1):
        what = f"turn {number} of '{key}'"
        if not isinstance(item, dict) or role_key not in item or text_key not in item:
            raise WorkloadError(f"{what} must be an object with '{role_key}' and '{text_key}'")
        role = ROLES.get(_text(item[role_key], f"'{role_key}' in {what}").lower())
        if role is None:
            raise WorkloadError(f"{what} is by {item[role_key]!r}; known are {', '.join(ROLES)}")
        # recorded answers are sometimes empty, which does no harm; the last user turn is checked below
        turns.append((role, _text(item[text_key], f"'{text_key}' in {what}", may_be_empty=True)))
    users = [i for i, (role, _) in enumerate(turns) if role == "user"]
    if not users:
        raise WorkloadError(f"'{key}' has no user turn")
    _text(turns[users[-1]][1], "the last user turn")
    return tuple(turn for i, turn in enumerate(turns[:users[-1] + 1]) if i >= users[0] or turn[0] == "system")


def _text(value: object, what: str, may_be_empty: bool = False) -> str:
    if not isinstance(value, str):
        raise WorkloadError(f"{what} must be a string, got {_kind(value)}")
    if not may_be_empty and not value.strip():
        raise WorkloadError(f"{what} is empty")
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON can spell half a character, "\ud800"; no tokenizer takes it
        raise WorkloadError(f"{what} holds half of a surrogate pair, which is no text") from None
    return value


def _list(value: object, what: str) -> list:
    if not isinstance(value, list):
        raise WorkloadError(f"{what} must be a list, got {_kind(value)}")
    if not value:
        raise WorkloadError(f"{what} is empty")
    return value


def _or(value: object, default: object) -> object:
    return default if value is None else value


def _kind(value: object) -> str:
    """JSON's name for the type of ``value``."""
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a number",
             float: "a number"}
    return names.get(type(value), type(value).__name__)
