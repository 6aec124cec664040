"""The command line on a tiny family: what it prints, what it writes, and how it says no."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spin_core import zoo
from spin_core.__main__ import main
from tests import tiny


@pytest.fixture
def family(monkeypatch):
    """``zoo.load`` gives the tiny family, whose tokenizer takes any text."""
    family = tiny.TinyFamily(tiny.family().target, tiny.family().drafters)
    family.encode = lambda prompt: [ord(c) % tiny.VOCAB for c in (prompt if isinstance(prompt, str)
                                                                  else prompt[-1]["content"])][:30]
    monkeypatch.setattr(zoo, "load", lambda *args, **options: family)
    return family


def test_generate_marks_what_was_drafted_and_accepted(family, capsys):
    assert main(["generate", "--prompt", "abc", "--drafter", "same", "--gamma", "3", "--max-new-tokens", "8"]) == 0
    drafted, summary = capsys.readouterr().out.split("\n\n")
    assert main(["generate", "--prompt", "abc", "--drafter", "none", "--max-new-tokens", "8"]) == 0
    plain, _ = capsys.readouterr().out.split("\n\n")
    assert "[" in drafted and "[" not in plain
    assert drafted.replace("[", "").replace("]", "") == plain
    assert "tokens per verification" in summary and "100%" in summary


def test_help_imports_no_model_library():
    program = ("import sys; from spin_core.__main__ import main\n"
               "try: main(['--help'])\nfinally: assert 'torch' not in sys.modules")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100,
                          env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])})
    assert done.returncode == 0 and "make a drafter" in done.stdout, done.stderr


@pytest.mark.parametrize("command", [["distill"], ["bench", "select"]])
def test_commands_know_their_arguments_when_asked(command, capsys):
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    assert {"distill": "--budget-minutes", "bench": "--seeds"}[command[0]] in capsys.readouterr().out


def test_equal_prompts_are_sampled_with_seeds_of_their_own_unless_one_is_given(family, tmp_path):
    def texts(*more: str) -> int:
        out = tmp_path / "out.json"
        assert main(["generate", *["--prompt", "abc"] * 4, "--temperature", "1", "--drafter", "none", *more,
                     "--max-new-tokens", "12", "--json", str(out)]) == 0
        return len({tuple(r["output_ids"]) for r in json.loads(out.read_text())["requests"]})

    assert texts() == 4 and texts("--seed", "0") == 1


def test_generate_with_a_selector(family, capsys):
    assert main(["generate", "--prompt", "abc", "--selector", "spin", "--max-new-tokens", "8"]) == 0
    selected, summary = capsys.readouterr().out.split("\n\n")
    assert main(["generate", "--prompt", "abc", "--drafter", "none", "--max-new-tokens", "8"]) == 0
    assert selected.replace("[", "").replace("]", "") == capsys.readouterr().out.split("\n\n")[0]
    assert "; drafters " in summary and "%:" in summary


def test_generate_writes_texts_events_and_metrics(family, tmp_path, capsys):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    prompts.write_text("".join(json.dumps({"prompt": f"number {i}"}) + "\n" for i in range(5)))
    assert main(["generate", "--workload", str(prompts), "--limit", "3", "--batch", "2", "--temperature", "1",
                 "--drafter", "near", "--max-new-tokens", "6", "--json", str(out)]) == 0
    written = json.loads(out.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert len(written["requests"]) == 3
    assert sum(len(r["output_ids"]) for r in written["requests"]) == written["metrics"]["emitted"] > 0
    assert {"submit", "admit", "step", "finish"} == {e["kind"] for e in written["events"]}
    assert written["versions"]["torch"] and written["arguments"]["drafter"] == "near"


@pytest.mark.parametrize("arguments, message", [
    (["--prompt", "abc", "--drafter", "nobody"], "known: near, subset"),
    (["--prompt", "abc", "--selector", "best"], "unknown selection policy 'best'; known: spin"),
    (["--prompt", "abc", "--selector", "spin", "--drafter", "near"], "a selector chooses drafters"),
    (["--prompt", "abc", "--temperature", "-1"], "temperature"),
    (["--prompt", "abc", "--gamma", "-1"], "gamma"),
    (["--workload", "no-such-set"], "no-such-set"),
    (["--prompt", "abc", "--draft-model", "some/model"], "--draft-model needs --target"),
    (["--prompt", "abc", "--limit", "3"], "--limit needs --workload"),
    (["--prompt", "abc", "--parts", "0"], "--parts 0"),
    (["--prompt", "abc", "--json", "/"], "'/'"),
    (["--prompt", "abc", "--json", ""], "an empty path names no file"),
])
def test_a_mistake_is_told_in_one_line(family, capsys, arguments, message):
    assert main(["generate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: ") and message in err and err.count("\n") == 1 and out == ""


def test_one_bad_prompt_fails_alone(family, capsys):
    good, bad = "abc", ""
    assert main(["generate", "--prompt", good, "--prompt", bad, "--max-new-tokens", "4"]) == 1
    out, err = capsys.readouterr()
    assert "error: request " in err and "the prompt is empty" in err and "4 tokens, length" in out


def test_a_file_is_written_even_if_nothing_can_be_printed(family, tmp_path, monkeypatch):
    out = tmp_path / "out.json"
    full = io.StringIO()
    monkeypatch.setattr(full, "write", lambda text: (_ for _ in ()).throw(OSError("no space")))
    monkeypatch.setattr("sys.stdout", full)
    assert main(["generate", "--prompt", "abc", "--max-new-tokens", "4", "--json", str(out)]) == 2
    assert len(json.loads(out.read_text())["requests"][0]["output_ids"]) == 4


def test_how_long_a_prompt_may_be_can_be_said(family, capsys):
    arguments = ["generate", "--prompt", "abcdef", "--drafter", "none", "--max-new-tokens", "4"]
    assert main([*arguments, "--max-len", "32"]) == 0
    assert main([*arguments, "--max-len", "3"]) == 1 and "max_len 3" in capsys.readouterr().err


@pytest.mark.parametrize("failure", [zoo.FetchError("no network, do this"), zoo.CorruptFileError("x is corrupt")])
def test_a_model_that_cannot_be_had_is_told_without_a_traceback(monkeypatch, capsys, failure):
    def load(*args, **options):
        raise failure

    monkeypatch.setattr(zoo, "load", load)
    assert main(["generate", "--prompt", "abc"]) == 2
    assert capsys.readouterr().err == f"error: {failure}\n"


def test_an_interrupt_ends_with_its_own_status(monkeypatch, capsys):
    def load(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(zoo, "load", load)
    assert main(["generate", "--prompt", "abc"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_json_that_cannot_be_written_is_noticed_before_the_work(family, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(zoo, "load", lambda *args, **options: pytest.fail("it has begun to work"))
    (tmp_path / "file").touch()
    assert main(["generate", "--prompt", "abc", "--json", str(tmp_path / "file" / "out.json")]) == 2
    assert "error: " in capsys.readouterr().err


def test_the_json_may_lie_in_a_new_folder(family, tmp_path, capsys):
    out = tmp_path / "new" / "out.json"
    assert main(["generate", "--prompt", "abc", "--max-new-tokens", "2", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["requests"][0]["text"]


@pytest.mark.parametrize("drafter", ["same", "near", "none"])
def test_what_is_shown_is_the_text_cut_before_its_stop_string(family, capsys, drafter):
    arguments = ["generate", "--prompt", "abc", "--drafter", drafter, "--max-new-tokens", "12"]
    assert main(arguments) == 0
    whole = _unmarked(capsys)
    stop = whole[4:6]
    assert main([*arguments, "--stop", stop]) == 0
    assert _unmarked(capsys) == whole[:whole.index(stop)]


@pytest.mark.parametrize("drafter", ["same", "near", "none"])
def test_a_character_made_of_several_tokens_is_shown_whole(family, capsys, drafter):
    spell = "a\N{WATER WAVE}b\N{SPARKLES}".encode()
    family.decode = lambda ids: bytes(spell[i % len(spell)] for i in range(len(ids))).decode(errors="replace")
    assert main(["generate", "--prompt", "a" * len(spell), "--drafter", drafter, "--gamma", "2",
                 "--max-new-tokens", "18"]) == 0
    assert _unmarked(capsys) == spell.decode() * 2


def _unmarked(capsys) -> str:
    """The text that was shown, without its marks."""
    return capsys.readouterr().out.split("\n\n")[0].replace("[", "").replace("]", "")
