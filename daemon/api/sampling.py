"""From a request's fields to sampling parameters, with every range checked."""

import math
import secrets

from daemon.api.errors import ApiError, invalid, shown
from daemon.api.schema import ChatRequest, Common, CompletionRequest
from daemon.request import MAX_SEQUENCES_PER_REQUEST, SamplingParams

MAX_STOPS = 16
MAX_STOP_LETTERS = 1024
MAX_LOGPROBS = 20
MAX_LIST = 1024
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


def between(
    value: float | None, default: float, low: float, high: float, name: str, open_low: bool = False
) -> float:
    """`value`, or `default` where it is null. Raises ApiError 400 outside of low..high."""
    if value is None:
        return default
    if not (low < value if open_low else low <= value) or not value <= high:
        begin = "(" if open_low else "["
        raise invalid(f"`{name}` must be in {begin}{low}, {high}], not {shown(value)}", name)
    return value


def whole(value: int | None, default: int, low: int, high: int, name: str) -> int:
    """As `between`, for whole numbers."""
    return int(between(value, default, low, high, name))


def num_choices(request: Common) -> int:
    """`n`, checked."""
    n = whole(request.n, 1, 1, MAX_SEQUENCES_PER_REQUEST, "n")
    best_of = request.best_of if isinstance(request, CompletionRequest) else None
    if best_of is not None and best_of != n:
        raise invalid("`best_of` is supported only when it equals `n`", "best_of")
    return n


def stop_strings(request: Common) -> tuple[str, ...]:
    """`stop`, checked; empty strings stop nothing."""
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if len(stops) > MAX_STOPS:
        raise invalid(f"`stop` takes up to {MAX_STOPS} strings", "stop")
    if any(len(stop) > MAX_STOP_LETTERS for stop in stops):
        raise invalid(f"a stop string may have {MAX_STOP_LETTERS} letters", "stop")
    return tuple(stop for stop in stops if stop)


def check_unsupported(request: Common) -> None:
    """Refuse what would otherwise be ignored silently. Raises ApiError 400."""
    form = request.response_format
    if form is not None and form.type != "text":
        raise _not_yet("response_format", f"`response_format` {form.type!r}")
    if isinstance(request, CompletionRequest):
        if request.suffix:
            raise _not_yet("suffix", "`suffix`")
        if request.echo and request.logprobs is not None:
            raise _not_yet("logprobs", "`echo` with `logprobs`")
    elif isinstance(request, ChatRequest):
        for index, message in enumerate(request.messages):
            if message.tool_calls:
                raise _not_yet(f"messages[{index}].tool_calls", "`tool_calls`")
    if request.stream_options is not None and not request.stream:
        raise invalid("`stream_options` needs `stream`", "stream_options")


def _not_yet(param: str, what: str) -> ApiError:
    return invalid(f"{what} is not supported yet", param, "unsupported_parameter")


def sampling_params(request: Common, vocab_size: int) -> SamplingParams:
    """How the request's stream 0 is drawn. Raises ApiError 400."""
    top_k = 0 if request.top_k == -1 else whole(request.top_k, 0, 0, _INT32_MAX, "top_k")
    seed = secrets.randbits(63) if request.seed is None else request.seed
    return SamplingParams(
        temperature=between(request.temperature, 1.0, 0.0, 2.0, "temperature"),
        top_k=min(top_k, vocab_size),
        top_p=between(request.top_p, 1.0, 0.0, 1.0, "top_p", open_low=True),
        min_p=between(request.min_p, 0.0, 0.0, 1.0, "min_p"),
        presence_penalty=between(request.presence_penalty, 0.0, -2.0, 2.0, "presence_penalty"),
        frequency_penalty=between(request.frequency_penalty, 0.0, -2.0, 2.0, "frequency_penalty"),
        repetition_penalty=between(
            request.repetition_penalty, 1.0, 0.0, 10.0, "repetition_penalty", open_low=True
        ),
        logit_bias=_logit_bias(request.logit_bias or {}, vocab_size),
        seed=whole(seed, 0, -_INT64_MAX - 1, _INT64_MAX, "seed") & _INT64_MAX,
        logprobs=_logprobs(request),
        stop_token_ids=_stop_token_ids(request.stop_token_ids or [], vocab_size),
        ignore_eos=bool(request.ignore_eos),
        min_tokens=whole(request.min_tokens, 0, 0, _INT32_MAX, "min_tokens"),
    )


def priority(request: Common) -> int:
    """`priority`, checked."""
    return whole(request.priority, 0, -_INT32_MAX, _INT32_MAX, "priority")


def _logprobs(request: Common) -> int:
    if isinstance(request, CompletionRequest):
        return whole(request.logprobs, -1, 0, MAX_LOGPROBS, "logprobs")
    if isinstance(request, ChatRequest):
        top = whole(request.top_logprobs, 0, 0, MAX_LOGPROBS, "top_logprobs")
        if request.logprobs:
            return top
        if request.top_logprobs is not None:
            raise invalid("`top_logprobs` needs `logprobs`", "top_logprobs")
    return -1


def _logit_bias(bias: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    if len(bias) > MAX_LIST:
        raise invalid(f"`logit_bias` takes up to {MAX_LIST} tokens", "logit_bias")
    pairs = []
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10) or int(key) >= vocab_size:
            raise invalid(f"`logit_bias` has {key[:40]!r}, which is no token id", "logit_bias")
        if not (math.isfinite(value) and -100 <= value <= 100):
            raise invalid("`logit_bias` values must be in [-100, 100]", "logit_bias")
        pairs.append((int(key), value))
    return tuple(pairs)


def _stop_token_ids(ids: list[int], vocab_size: int) -> tuple[int, ...]:
    if len(ids) > MAX_LIST:
        raise invalid(f"`stop_token_ids` takes up to {MAX_LIST} ids", "stop_token_ids")
    if any(not 0 <= token < vocab_size for token in ids):
        raise invalid("`stop_token_ids` has an id outside of the vocabulary", "stop_token_ids")
    return tuple(ids)
