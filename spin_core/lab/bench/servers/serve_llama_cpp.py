"""llama.cpp as a peer of ``bench peers``: a program for an environment with llama-cpp-python, not ours.

Speaks as ``serve_vllm.py`` does. It decodes one prompt after the other.
"""

import json
import os
import sys
from itertools import islice


def main(gguf: str, batch: str, threads: str, drafts: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)                               # what the library prints is not an answer
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    lookup = LlamaPromptLookupDecoding(max_ngram_size=4, num_pred_tokens=int(drafts)) if int(drafts) else None
    model = llama_cpp.Llama(gguf, n_ctx=1024, n_threads=int(threads), n_threads_batch=int(threads), verbose=False,
                            draft_model=lookup)
    print(json.dumps({"version": llama_cpp.__version__}), file=answers)
    for line in sys.stdin:
        asked, texts = json.loads(line), []
        for prompt in asked["prompts"]:
            text = []
            for token in islice(model.generate(prompt, temp=asked["temperature"], top_k=0, top_p=1.0, min_p=0.0,
                                               repeat_penalty=1.0), asked["max_new_tokens"]):
                text.append(token)
                if token in asked["stop"]:
                    break
            texts.append(text)
        print(json.dumps({"tokens": texts}), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
