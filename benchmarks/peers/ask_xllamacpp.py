"""Print the log-probabilities of the tokens after some prompts; runs in xllamacpp's own virtual
environment.

usage: ask_xllamacpp.py GGUF NUM_TOKENS LETTER < PROMPTS, a JSON list of lists of tokens; the reply
is one line for each, a JSON list [NUM_TOKENS] by the tokens' numbers. LETTER: a token that is drawn
always, whatever the probabilities: those of tokens that are no text are not told.
"""

import json
import sys
from typing import Any

import xllamacpp  # type: ignore[import-not-found]


def main() -> None:
    """Answer all prompts."""
    gguf, num_tokens, letter = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    params = xllamacpp.CommonParams()
    params.model.path = gguf
    params.n_ctx, params.n_parallel = 256, 1
    params.cache_prompt, params.cache_ram_mib, params.warmup = False, 0, False
    params.offline = True
    params.verbosity = 1
    # Of keys and values as of all else: what differs then is what the model computes.
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    for prompt in json.load(sys.stdin):
        asked = {"prompt": prompt, "n_predict": 1, "n_probs": num_tokens, "temperature": 0.0}
        drawn = {"cache_prompt": False, "logit_bias": [[letter, 1000.0]]}
        reply: Any = server.handle_completions({**asked, **drawn})
        first = reply["choices"][0]["logprobs"]["content"][0]
        found = [0.0] * num_tokens
        for token in first["top_logprobs"]:
            found[token["id"]] = token["logprob"]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
