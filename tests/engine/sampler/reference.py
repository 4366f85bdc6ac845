"""A reference sampler: one row at a time, in float64 and with full sorts."""

import math

import numpy as np
import numpy.typing as npt

from daemon.state.request import SamplingParams

Row = npt.NDArray[np.float64]


def edited(
    row: Row, sampling: SamplingParams, prompt: list[int], outputs: list[int], ends: tuple[int, ...]
) -> Row:
    """The logits after penalties, bias and `min_tokens`."""
    row = row.astype(np.float64).copy()
    for token in set(prompt + outputs):
        factor = sampling.repetition_penalty
        row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
    for token in set(outputs):
        row[token] -= sampling.presence_penalty
        row[token] -= sampling.frequency_penalty * outputs.count(token)
    for token, value in dict(sampling.logit_bias).items():
        row[token] += value
    if len(outputs) < sampling.min_tokens:
        row[[*ends, *sampling.stop_token_ids]] = -math.inf
    return row


def distribution(row: Row, sampling: SamplingParams) -> Row:
    """Probabilities after temperature, top-k, top-p and min-p; ties at a cut stay."""
    scaled = (row - row.max()) / sampling.temperature
    weights = np.exp(scaled)
    if sampling.top_k:
        weights[scaled < np.sort(scaled)[-min(sampling.top_k, len(row))]] = 0.0
    weights /= weights.sum()
    if sampling.top_p < 1.0:
        order = np.argsort(-scaled, kind="stable")
        before = np.cumsum(weights[order]) - weights[order]
        kept = order[before < sampling.top_p]
        last = scaled[kept[-1]] if len(kept) else scaled.max()
        weights[scaled < last] = 0.0
    weights[np.exp(scaled) < sampling.min_p] = 0.0
    return weights / weights.sum()
