"""Peers in other environments: their programs speak JSON lines, and one that dies is reported with its last words."""

import sys
from types import SimpleNamespace

import pytest

from spin_core.lab.bench import elsewhere

VLLM = """
from types import SimpleNamespace as N
__version__ = "9.9"
SamplingParams = dict
class LLM:
    def __init__(self, folder, dtype, max_model_len, max_num_seqs, speculative_config=None):
        print("loading", folder)                # libraries print to stdout
        assert dtype == "float32" and max_num_seqs == 2
        self.step = speculative_config["num_speculative_tokens"] if speculative_config else 1
    def generate(self, prompts, params, use_tqdm):
        return [N(outputs=[N(token_ids=[p["prompt_token_ids"][-1] + self.step * k
                                        for k in range(params["max_tokens"])])])
                for p in prompts]
"""
LLAMA = """
__version__ = "8.8"
class Llama:
    def __init__(self, gguf, draft_model, **more): self.step = draft_model or 1
    def generate(self, prompt, temp, **more):
        while True:
            prompt = [prompt[-1] + self.step]
            yield prompt[-1]
"""
LOOKUP = "def LlamaPromptLookupDecoding(max_ngram_size, num_pred_tokens): return num_pred_tokens"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Stand-ins for the libraries, where a child process finds them."""
    (tmp_path / "llama_cpp").mkdir()
    files = {"vllm.py": VLLM, "llama_cpp/__init__.py": LLAMA, "llama_cpp/llama_speculative.py": LOOKUP}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name, batch, plain, drafted", [
    ("vllm", 2, [[3, 4, 5], [7, 8, 9]], [[3, 7, 11], [7, 11, 15]]),
    ("llama.cpp", 1, [[4, 5], [8, 9, 10]], [[7, 11, 15], [11, 15, 19]])])
def test_a_peer_decodes_plainly_and_with_its_own_speculation(installed, name, batch, plain, drafted):
    here = elsewhere.contenders([(name, sys.executable)], {5}, batch, 3, 0.0)
    assert [c.gamma for c in here] == [None, elsewhere.DRAFTS]
    for contender, expected in zip(here, (plain, drafted)):
        assert contender.decode([[1, 2, 3], [7]]) == expected
        assert contender.decode([[7], [1, 2, 3]]) == expected[::-1]         # the process lives on
        contender.record(0, "mix", expected, 1.0)
    assert elsewhere.close(here) == [f"{c.name}: version {'9.9' if name == 'vllm' else '8.8'}" for c in here]
    assert all(c.decode.process is None for c in here)


def test_llama_cpp_has_no_batches():
    assert elsewhere.contenders([("llama.cpp", sys.executable)], {5}, 8, 3, 0.0) == []


def test_a_peer_that_dies_says_its_last_words(installed):
    (installed / "vllm.py").write_text("raise SystemExit('no such processor')")
    peer = elsewhere.contenders([("vllm", sys.executable)], {5}, 2, 3, 0.0)[0]
    with pytest.raises(RuntimeError, match="ended with code 1: .*no such processor"):
        peer.decode([[1]])
    elsewhere.close([peer, SimpleNamespace(decode=None)])


@pytest.mark.parametrize("text", ["vllm", "vllm=/no/such/python", f"other={sys.executable}"])
def test_a_peer_is_named_with_its_interpreter(text):
    with pytest.raises(ValueError, match="NAME=PYTHON"):
        elsewhere.peer(text)
    assert elsewhere.peer(f"vllm={sys.executable}") == ("vllm", sys.executable)
