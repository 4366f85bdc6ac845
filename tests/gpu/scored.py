"""An engine's greedy answers, scored once by transformers' own modelling and attention.

The engine's log-probabilities must agree with the reference's, and each drawn token must be the
reference's best, up to the error that the type of the weights makes in transformers too.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.gpu.report import Check
from daemon.protocol.worker import Reply
from daemon.state.request import SamplingParams
from tests.gpu.engine_runs import Rows, Run

GREEDY = SamplingParams(temperature=0.0, logprobs=0, ignore_eos=True)
FLOAT32_LIMIT = 2e-3
BLOCK_SIZE = 16

Prompts = list[list[int]]


def answer_checks(
    name: str,
    dtype: str,
    run: Run,
    references: dict[str, Any],
    prompts: Prompts,
    num_tokens: int,
    chunk: int,
) -> Iterator[Check]:
    """The prompts computed in chunks, if `chunk` is not 0, then all in one step.

    Answers have `num_tokens`; `references` are transformers' models by their type: float32, and
    `dtype`.
    """
    for kind in ("chunked", "together") if chunk else ("together",):
        rows = Rows(run, prompts, num_tokens, BLOCK_SIZE, GREEDY)
        if kind == "together":
            first = [rows.prefill_together()]
        else:
            first = [reply for reply in rows.prefill(chunk) if len(reply.tokens)]
        steps = [np.concatenate([reply.tokens for reply in first])]
        scores = [np.concatenate([_chosen(reply) for reply in first])]
        for _ in range(num_tokens - 1):
            reply = rows.decode()
            steps.append(reply.tokens)
            scores.append(_chosen(reply))
        rows.leave()
        answers = np.stack(steps, 1), np.stack(scores, 1)
        error, limit = _errors(prompts, *answers, references, dtype)
        yield Check(f"engine {name} {dtype} {kind}", error, limit, "nats")


def _chosen(reply: Reply) -> npt.NDArray[np.float32]:
    assert reply.logprobs is not None
    chosen: npt.NDArray[np.float32] = reply.logprobs.chosen
    return chosen


def _errors(
    prompts: Prompts, tokens: Any, scores: Any, references: dict[str, Any], dtype: str
) -> tuple[float, float]:
    """The largest error of score or choice in nats, and its limit."""
    error, rounding = 0.0, 0.0
    for prompt, answer, given in zip(prompts, tokens, scores, strict=True):
        text = prompt + answer.tolist()
        exact = _scores(references["float32"], text, len(prompt))
        chosen = exact.gather(1, torch.from_numpy(answer).long().unsqueeze(1)).squeeze(1)
        wrong = (chosen - torch.from_numpy(given)).abs().max()
        worse = (exact.amax(-1) - chosen).max()
        error = _larger(error, float(wrong), float(worse))
        rounded = _scores(references[dtype], text, len(prompt))
        rounding = max(rounding, float((rounded - exact).abs().max()))
    return error, FLOAT32_LIMIT if dtype == "float32" else 2 * rounding


def _larger(*errors: float) -> float:
    """The largest; NaN where one is, which `max` would lose."""
    return float(np.max(errors))


def _scores(model: Any, text: list[int], num_prompt_tokens: int) -> torch.Tensor:
    """Log-probabilities float32 [answer, vocab] that a model gives at each token of an answer."""
    row = torch.tensor([text], device=model.device)
    logits = model(input_ids=row, use_cache=False).logits[0]
    return torch.log_softmax(logits[num_prompt_tokens - 1 : -1].float(), -1).cpu()
