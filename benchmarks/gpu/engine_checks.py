"""The engine's greedy answers against transformers' own modelling and attention.

A whole answer is scored once by the reference. The engine's log-probabilities must agree, and each
drawn token must be the reference's best, up to the error that bfloat16 makes in transformers too.
"""

import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig, LlamaConfig, OPTConfig, Qwen3Config

from benchmarks.gpu.engine_runs import Rows, Run, load_message
from benchmarks.gpu.report import Check
from daemon.engine.start import start
from daemon.engine.step import Engine
from daemon.request import SamplingParams

VOCAB, CONTEXT = 499, 512
LENGTHS = (5, 1, 33, 98)
GREEDY = SamplingParams(temperature=0.0, logprobs=0, ignore_eos=True)
FLOAT32_LIMIT = 2e-3

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.08,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
CONFIGS: dict[str, Any] = {
    "Llama": LlamaConfig(**_COMMON, intermediate_size=512, num_key_value_heads=2),
    "Qwen3": Qwen3Config(**_COMMON, intermediate_size=512, num_key_value_heads=1, head_dim=128),
    "OPT": OPTConfig(**_COMMON, ffn_dim=512, word_embed_proj_dim=256),
    "GPT-NeoX": GPTNeoXConfig(**_COMMON, intermediate_size=512),
}


def engine_checks(
    device: str,
    names: tuple[str, ...] = tuple(CONFIGS),
    dtypes: tuple[str, ...] = ("float32", "bfloat16"),
    num_tokens: int = 24,
    runner: Callable[[Engine], Run] = lambda engine: engine.run,
) -> Iterator[Check]:
    """Each architecture in each dtype, prefilled in chunks and all at once."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            _save(name, Path(folder))
            references = {dtype: _load(Path(folder), dtype, device) for dtype in dtypes}
            references |= {"float32": _load(Path(folder), "float32", device)}
            for dtype in dtypes:
                message = load_message(Path(folder), device, dtype, 128, 8, CONTEXT)
                with torch.inference_mode():
                    engine, *_ = start(message, lambda stage, fraction: None)
                    yield from _check(name, dtype, runner(engine), references, num_tokens)


def _save(name: str, folder: Path) -> None:
    torch.manual_seed(1)
    loader: Any = AutoModelForCausalLM
    model = loader.from_config(CONFIGS[name]).float()
    # Rounded, so that every dtype holds the same weights.
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")


def _load(folder: Path, dtype: str, device: str) -> Any:
    """transformers' own model, with its plainest attention."""
    loader: Any = AutoModelForCausalLM
    model = loader.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval().to(device)


def _check(
    name: str, dtype: str, run: Run, references: dict[str, Any], num_tokens: int
) -> Iterator[Check]:
    chooser = random.Random(2)
    prompts = [[chooser.randrange(VOCAB) for _ in range(n)] for n in LENGTHS]
    for kind in ("chunked", "together"):
        rows = Rows(run, prompts, num_tokens, 16, GREEDY)
        if kind == "together":
            first = [rows.prefill_together()]
        else:
            first = [reply for reply in rows.prefill(40) if len(reply.tokens)]
        steps = [np.concatenate([reply.tokens for reply in first])]
        scores = [np.concatenate([reply.logprobs.chosen for reply in first if reply.logprobs])]
        for _ in range(num_tokens - 1):
            reply = rows.decode()
            steps.append(reply.tokens)
            scores.append(reply.logprobs.chosen if reply.logprobs else np.zeros(0))
        rows.leave()
        answers = np.stack(steps, 1), np.stack(scores, 1)
        error, limit = _errors(prompts, *answers, references, dtype)
        yield Check(f"engine {name} {dtype} {kind}", error, limit)


def _errors(
    prompts: list[list[int]], tokens: Any, scores: Any, references: dict[str, Any], dtype: str
) -> tuple[float, float]:
    """The largest error of score or choice in nats, and its limit."""
    error, rounding = 0.0, 0.0
    for prompt, answer, given in zip(prompts, tokens, scores, strict=True):
        text = prompt + answer.tolist()
        exact = _scores(references["float32"], text, len(prompt))
        chosen = exact.gather(1, torch.from_numpy(answer).long().unsqueeze(1)).squeeze(1)
        wrong = (chosen - torch.from_numpy(given)).abs().max()
        worse = (exact.amax(-1) - chosen).max()
        error = max(error, float(wrong), float(worse))
        rounded = _scores(references[dtype], text, len(prompt))
        rounding = max(rounding, float((rounded - exact).abs().max()))
    return error, FLOAT32_LIMIT if dtype == "float32" else 2 * rounding


def _scores(model: Any, text: list[int], num_prompt_tokens: int) -> torch.Tensor:
    """Log-probabilities float32 [answer, vocab] that a model gives at each token of an answer."""
    row = torch.tensor([text], device=model.device)
    logits = model(input_ids=row, use_cache=False).logits[0]
    return torch.log_softmax(logits[num_prompt_tokens - 1 : -1].float(), -1).cpu()
