"""Texts decoded as their tokens come: with byte-level tokenizers, and such as drop the first space of a text."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings, strategies as st
from tokenizers import Tokenizer, decoders, models

from spin_core.text import INCOMPLETE, OutputText, special_stops

BYTES = [f"<0x{i:02X}>" for i in range(256)]
WORDS = ["\u2581", "\u2581cat", "cat", "\u2581sky", "z", "d", "\u2581\u2581", "."]
SPECIAL = ["<s>", "</s>"]


def sentence_piece() -> Tokenizer:
    """As Llama's: the space is a part of the word, the first one is dropped, unknown characters are bytes."""
    vocab = {token: i for i, token in enumerate([*SPECIAL, *WORDS, *BYTES])}
    made = Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                      decoders.Strip(" ", 1, 0)])
    made.add_special_tokens(SPECIAL)
    return made


def byte_level() -> Tokenizer:
    """As GPT-2's and SmolLM2's: tokens are strings of bytes."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = bytes_to_unicode()
    pieces = [letters[i] for i in range(256)] + ["".join(letters[i] for i in text.encode())
                                                 for text in (" cat", "sky", "\u00e9", "\U0001f600")]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate([*SPECIAL, *pieces])}, []))
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    return made


TOKENIZERS = {"sentence piece": sentence_piece(), "byte level": byte_level()}


def ids_of(tokenizer: Tokenizer):
    """Texts of tokens: whole characters and single bytes, words and special tokens, in any order."""
    size = tokenizer.get_vocab_size()
    offset = 10 if tokenizer is TOKENIZERS["sentence piece"] else 2
    characters = st.sampled_from(["\u00e9", "\U0001f600", "a "]).map(lambda c: [offset + byte for byte in c.encode()])
    words = st.integers(0, 9).map(lambda i: [i])
    # in a run of byte tokens one that is wrong turns all of them into marks: there, only whole characters
    parts = [words, characters] if offset == 10 else [words, characters, st.integers(0, size - 1).map(lambda i: [i])]
    return st.lists(st.one_of(parts)).map(lambda parts: [i for part in parts for i in part])


@settings(max_examples=300, deadline=None)
@given(data=st.data(), name=st.sampled_from(list(TOKENIZERS)))
def test_the_text_is_what_prompt_and_output_decode_to_less_what_the_prompt_does(data, name):
    tokenizer = TOKENIZERS[name]
    prompt = data.draw(ids_of(tokenizer))
    output = data.draw(ids_of(tokenizer))
    cut = data.draw(st.integers(0, 2)) * (name == "byte level")         # in the midst of a character
    output = output[:len(output) - cut]
    if tokenizer.decode(prompt).endswith(INCOMPLETE):
        prompt = []
    before, both = tokenizer.decode(prompt), tokenizer.decode(prompt + output)
    assert both.startswith(before)
    text = OutputText(tokenizer.decode, prompt)
    seen = ""
    for token in output:
        assert not text.extend([token])
        assert text.text.startswith(seen), "what was shown is taken back"
        seen = text.text
    assert text.text == both[len(before):].rstrip(INCOMPLETE)
    at_once = OutputText(tokenizer.decode, prompt)
    at_once.catch_up(output)
    assert at_once.text == text.text
    assert not at_once.catch_up(output) and at_once.text == text.text


def test_a_first_space_that_the_tokenizer_drops_is_kept():
    tokenizer = TOKENIZERS["sentence piece"]
    ids = {token: tokenizer.token_to_id(token) for token in [*SPECIAL, *WORDS]}
    output = [ids["\u2581cat"], ids["z"], ids["d"], ids["\u2581sky"]]
    assert tokenizer.decode(output) == "catzd sky"
    for prompt in ([ids["z"]], [ids["\u2581sky"], ids["</s>"]]):
        text = OutputText(tokenizer.decode, prompt)
        text.extend(output)
        assert text.text == " catzd sky"
    text = OutputText(tokenizer.decode, [ids["z"]], (" cat",))
    assert text.extend(output[:1]) and text.text == ""


def test_a_character_that_is_not_whole_is_held_back():
    tokenizer = TOKENIZERS["byte level"]
    smile = [2 + byte for byte in "\U0001f600".encode()]
    text = OutputText(tokenizer.decode, [2 + ord("a")])
    for token in [2 + ord("b"), *smile[:3]]:
        text.extend([token])
    assert text.text == "b"
    text.extend(smile[3:])
    assert text.text == "b\U0001f600"
    words = OutputText(TOKENIZERS["sentence piece"].decode, [3])
    for token in [205, 179, 205]:               # the tokenizer itself would turn the whole one into marks, too
        words.extend([token])
    assert words.text == "\u00e9"
    text.extend([*smile[:1], 2 + ord("c")])         # it never becomes whole: then the mark is what it decodes to
    assert text.text == f"b\U0001f600{INCOMPLETE}c"


@settings(max_examples=200, deadline=None)
@given(output=st.text("ab ", max_size=30), stop=st.lists(st.text("ab ", min_size=1, max_size=4), max_size=3),
       cuts=st.lists(st.integers(1, 4), min_size=30, max_size=30))
@example(output="aab", stop=["aab", "ab"], cuts=[1] * 30)
def test_the_first_stop_string_ends_the_text_however_the_tokens_come(output, stop, cuts):
    text, at = OutputText("".join, [], tuple(stop)), 0
    for cut in cuts:
        if at < len(output) and text.extend(output[at:at + cut]):
            break
        at += cut
    ends = [output.find(s) + len(s) for s in stop if s in output]
    found = [output.find(s) for s in stop if s in output]
    assert text.stopped == bool(found)
    if not found:
        assert text.text == output
    elif set(cuts) == {1}:      # token by token: the first that is complete
        complete = min(ends)
        assert text.text == output[:min(at for at, s in ((output.find(s), s) for s in stop if s in output)
                                        if at + len(s) <= complete)]


def test_the_work_per_token_does_not_grow():
    lengths = []

    def decode(ids: list[int]) -> str:
        lengths.append(len(ids))
        return "".join(map(chr, ids))

    text = OutputText(decode, [97] * 50, ("zz",))
    for _ in range(1000):
        text.extend([98])
    assert text.text == "b" * 1000 and max(lengths[4:]) <= 2


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_tokens_are_no_text(name):
    tokenizer = TOKENIZERS[name]
    text = OutputText(tokenizer.decode, [0, 4])
    for token in [5, 1, 1, 5, 0]:
        text.extend([token])
    assert text.text == tokenizer.decode([0, 4, 5, 1, 1, 5, 0])[len(tokenizer.decode([0, 4])):]


def test_special_tokens_are_listed_for_stop_strings_only():
    """It happens at every submission, and the list of a large tokenizer takes a while."""
    class Tokenizer:
        @property
        def added_tokens_decoder(self):
            raise AssertionError("asked")

    assert special_stops(Tokenizer(), ()) == set()
    with pytest.raises(AssertionError, match="asked"):
        special_stops(Tokenizer(), ("end",))
