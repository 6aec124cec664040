"""vLLM's CPU build as a peer of ``bench peers``: a program for an environment in which vLLM is installed, not ours.

It reads one JSON object a line, ``{"prompts": token ids, "max_new_tokens", "temperature", "stop": ids}``, and answers
each with one, ``{"tokens": token ids}``; its first line tells its version.
"""

import json
import os
import sys


def main(folder: str, batch: str, threads: str, drafts: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)                               # what the library prints is not an answer
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                   "VLLM_CPU_OMP_THREADS_BIND": f"0-{int(threads) - 1}"}
    import vllm

    more = {}
    if int(drafts):
        more["speculative_config"] = {"method": "ngram", "num_speculative_tokens": int(drafts),
                                      "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    engine = vllm.LLM(folder, dtype="float32", max_model_len=1024, max_num_seqs=int(batch), **more)
    print(json.dumps({"version": vllm.__version__}), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        params = vllm.SamplingParams(temperature=asked["temperature"], max_tokens=asked["max_new_tokens"],
                                     stop_token_ids=asked["stop"], detokenize=False)
        found = engine.generate([{"prompt_token_ids": ids} for ids in asked["prompts"]], params, use_tqdm=False)
        print(json.dumps({"tokens": [list(one.outputs[0].token_ids) for one in found]}), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
