"""Sampling parameters from a request's fields, and checks beyond their types."""

import secrets
from collections.abc import Iterable
from typing import TypeVar

from daemon.api.replies.errors import invalid
from daemon.api.request.decode import INSTEAD
from daemon.api.request.response_format import grammar_of, wanted
from daemon.api.request.schema import ChatRequest, Common, CompletionRequest
from daemon.models.generation import DefaultSampling
from daemon.state.request import SamplingParams

_INT64_MAX = 2**63 - 1
_NEVER = -1e4
"""The bias of a token that is never sampled, unless a grammar allows nothing else."""

Value = TypeVar("Value")


def given(value: Value | None, default: Value) -> Value:
    """`value`, or `default` where it is null."""
    return default if value is None else value


def num_choices(request: Common) -> int:
    """`n`, checked."""
    n = given(request.n, 1)
    best_of = request.best_of if isinstance(request, CompletionRequest) else None
    if best_of is not None and best_of != n:
        what = f"`best_of` must equal `n`: {INSTEAD['best_of']}"
        raise invalid(what, "best_of", "unsupported_parameter")
    return n


def stop_strings(request: Common, defaults: DefaultSampling) -> tuple[str, ...]:
    """`stop` without empty strings, and the model's own stop strings."""
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    own = () if request.ignore_eos else defaults.stop
    return tuple(dict.fromkeys(stop for stop in (*stops, *own) if stop))


def check_unsupported(request: Common) -> None:
    """Refuse fields that would otherwise be ignored silently. Raises ApiError 400."""
    if isinstance(request, CompletionRequest) and request.suffix:
        what = "`suffix` is not supported; write prefix and suffix into `prompt`, with the tokens "
        raise invalid(f"{what}that the model has for it", "suffix", "unsupported_parameter")
    if request.stream_options is not None and not request.stream:
        raise invalid("`stream_options` needs `stream`", "stream_options")


def sampling_params(
    request: Common, defaults: DefaultSampling, vocab_size: int, most: int
) -> SamplingParams:
    """The sampling parameters of the request's stream 0, of at most `most` tokens.

    Raises ApiError 400.
    """
    seed = secrets.randbits(63) if request.seed is None else request.seed
    return SamplingParams(
        temperature=given(request.temperature, defaults.temperature),
        top_k=min(max(given(request.top_k, defaults.top_k), 0), vocab_size),
        top_p=given(request.top_p, defaults.top_p),
        min_p=given(request.min_p, defaults.min_p),
        presence_penalty=given(request.presence_penalty, 0.0),
        frequency_penalty=given(request.frequency_penalty, 0.0),
        repetition_penalty=given(request.repetition_penalty, defaults.repetition_penalty),
        logit_bias=_logit_bias(request.logit_bias or {}, defaults.suppressed, vocab_size),
        seed=seed & _INT64_MAX,
        logprobs=_logprobs(request),
        stop_token_ids=_stop_token_ids(request.stop_token_ids or [], vocab_size),
        ignore_eos=bool(request.ignore_eos),
        min_tokens=given(request.min_tokens, min(defaults.min_tokens, most)),
        grammar=grammar_of(wanted(request)),
        prompt_logprobs=_logprobs(request) if _echoes(request) else -1,
    )


def max_repeated_tokens(request: Common, sampling: SamplingParams, default: int) -> int:
    """The most tokens for which an answer may repeat itself; 0: no bound.

    An answer by a grammar may be data, and `ignore_eos` asks for a fixed number of tokens.
    """
    if sampling.grammar or sampling.ignore_eos:
        return 0
    return given(request.max_repeated_tokens, default)


def _echoes(request: Common) -> bool:
    return isinstance(request, CompletionRequest) and bool(request.echo)


def _logprobs(request: Common) -> int:
    if isinstance(request, CompletionRequest):
        return given(request.logprobs, -1)
    if isinstance(request, ChatRequest):
        if request.logprobs:
            return given(request.top_logprobs, 0)
        if request.top_logprobs is not None:
            raise invalid("`top_logprobs` needs `logprobs`", "top_logprobs")
    return -1


def _logit_bias(
    bias: dict[str, float], suppressed: tuple[int, ...], vocab_size: int
) -> tuple[tuple[int, float], ...]:
    pairs = {int(key): value for key, value in bias.items()}
    _check_ids(pairs, vocab_size, "logit_bias")
    held = dict.fromkeys((token for token in suppressed if token < vocab_size), _NEVER)
    return tuple((held | pairs).items())


def _stop_token_ids(ids: list[int], vocab_size: int) -> tuple[int, ...]:
    _check_ids(ids, vocab_size, "stop_token_ids")
    return tuple(ids)


def _check_ids(ids: Iterable[int], vocab_size: int, field: str) -> None:
    beyond = next((token for token in ids if token >= vocab_size), None)
    if beyond is not None:
        said = (
            f"`{field}` has the token {beyond}, and the model has the tokens 0 to {vocab_size - 1}"
        )
        raise invalid(said, field)
