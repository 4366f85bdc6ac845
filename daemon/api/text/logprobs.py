"""Log-probabilities: from a step's columns to single tokens."""

import msgspec

from daemon.api.text.token_bytes import TokenBytes
from daemon.protocol.worker import Logprobs

LEAST_LOGPROB = -9999.0
"""JSON has no infinities."""


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """A sampled token's log-probability and the best tokens at its position, best first."""

    token: int
    logprob: float
    top: list[tuple[int, float]]
    offset: int = 0  # letters of its text that come before it


class _Row(msgspec.Struct, frozen=True, gc=False):
    """The log-probabilities of one row of a `Tokens` message."""

    chosen: float
    ids: list[int]
    values: list[float]


Rows = dict[int, _Row]


def by_row(logprobs: Logprobs | None) -> Rows:
    """The rows of a message that have log-probabilities."""
    if logprobs is None or not len(logprobs.rows):
        return {}
    count = len(logprobs.rows)
    ids = logprobs.top_ids.reshape(count, -1).tolist()
    values = logprobs.top_values.reshape(count, -1).tolist()
    chosen = logprobs.chosen.tolist()
    return {row: _Row(chosen[i], ids[i], values[i]) for i, row in enumerate(logprobs.rows.tolist())}


def requested(token: int, row: _Row, depth: int) -> TokenLogprob | None:
    """The part of a row that a request wants; None for `depth` -1."""
    if depth < 0:
        return None
    top = list(zip(row.ids[:depth], row.values[:depth], strict=True))
    return TokenLogprob(token, row.chosen, top)


def finite(logprob: float) -> float:
    """A log-probability that JSON can represent."""
    return max(logprob, LEAST_LOGPROB)


def name_of(token: int, tokens: TokenBytes) -> str:
    """A token's text in the `logprobs` of completions."""
    raw = tokens(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:  # a piece of a character, as OpenAI writes it
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def best_of(entry: TokenLogprob, tokens: TokenBytes) -> dict[str, float]:
    """The best tokens at a position and the chosen one; empty if none is wanted."""
    best = {name_of(token, tokens): finite(logprob) for token, logprob in entry.top}
    return {**best, name_of(entry.token, tokens): finite(entry.logprob)} if best else {}
