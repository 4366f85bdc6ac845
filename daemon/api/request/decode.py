"""From a body's bytes to a typed request, or a 400 that names the field."""

import asyncio
import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from daemon.api.replies.errors import ApiError, invalid
from daemon.base.accepted import UNKNOWN, accepted, current_value

Request = TypeVar("Request")

_UNKNOWN = re.compile(r"unknown field `(.*?)`")
_PATH = re.compile(r" - at (?:`key` in )?`\$\.?(.*?)(?:\[\.\.\.\])?`$")
_MISSING = re.compile(r"missing required field `(.*?)`")
REPLACED = {"functions": "tools", "function_call": "tool_choice"}
"""Deprecated fields of OpenAI's API, each with its successor."""
INSTEAD = {"best_of": "ask for `n` answers with `logprobs`, and take the best"}
"""Advice for fields that are not supported everywhere."""

_MOST_WHOLE = 2.0**63

LARGE_BYTES = 256 * 1024
MAX_COMMAS = 2_000_000
MAX_BRACKETS = 200_000
"""Decoding blocks the event loop: a body that would take longer than 100 ms is refused unread."""


class BodyDecoder:
    """Decodes the bodies of all requests, at most one large body per round of the event loop, so
    that other work runs in between.
    """

    def __init__(self) -> None:
        self._large = asyncio.Lock()

    async def decode(self, decoder: "msgspec.json.Decoder[Request]", body: bytes) -> Request:
        """The request in `body`. Raises ApiError 400."""
        if len(body) <= LARGE_BYTES:
            return decode(decoder, body)
        async with self._large:
            await asyncio.sleep(0)
            return decode(decoder, body)


def decode(decoder: "msgspec.json.Decoder[Request]", body: bytes) -> Request:
    """The request in `body`. Raises ApiError 400."""
    if len(body) > LARGE_BYTES:
        _check_plausible(body)
    try:
        with _without_gc():
            try:
                return decoder.decode(body)
            except msgspec.ValidationError as error:
                if "got `float`" not in str(error) or len(body) > LARGE_BYTES:
                    raise
                return decoder.decode(_with_whole_numbers(body))
    except msgspec.ValidationError as error:
        raise _named(str(error), decoder.type, body) from None
    except UnicodeDecodeError:
        raise invalid("the body is not valid UTF-8", code="invalid_json") from None
    except (msgspec.DecodeError, RecursionError, OverflowError) as error:
        raise invalid(_no_json(str(error), body), code="invalid_json") from None


def _with_whole_numbers(body: bytes) -> bytes:
    """The same JSON, with numbers like 538.0 as 538, which JSON Schema calls an integer."""

    def changed(value: Any) -> Any:
        if isinstance(value, float) and value.is_integer() and abs(value) < _MOST_WHOLE:
            return int(value)
        if isinstance(value, dict):
            return {key: changed(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [changed(inner) for inner in value]
        return value

    try:
        return msgspec.json.encode(changed(msgspec.json.decode(body)))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return body


def _no_json(error: str, body: bytes) -> str:
    if not body.strip():
        return "the body is empty, and must be a JSON object"
    if "truncated" in error:
        return "the body is not valid JSON: it ends too early"
    return f"the body is not valid JSON: {error.removeprefix('JSON is malformed: ')}"


def _check_plausible(body: bytes) -> None:
    brackets = body.count(b"[") + body.count(b"{")
    if brackets > MAX_BRACKETS or body.count(b",") > MAX_COMMAS:
        raise invalid("the body has too many elements", code="invalid_json")


@contextmanager
def _without_gc() -> Iterator[None]:
    # A collector that runs every 700 lists makes a long body's cost quadratic.
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _named(message: str, kind: type, body: bytes) -> ApiError:
    path = _PATH.search(message)
    where = path.group(1) if path else ""
    unknown = _UNKNOWN.search(message)
    if unknown:
        field = f"{where}.{unknown.group(1)}" if where else unknown.group(1)
        if field in REPLACED:
            message = f"`{field}` is deprecated and not supported; use `{REPLACED[field]}`"
            return invalid(message, field, "unsupported_parameter")
        if field in INSTEAD:
            message = f"`{field}` is not supported here: {INSTEAD[field]}"
            return invalid(message, field, "unsupported_parameter")
        message = f"`{field}` is an unknown field{'' if where else _meant(field, kind)}"
        return invalid(message, field, "unknown_parameter")
    missing = _MISSING.search(message)
    if missing:
        field = f"{where}.{missing.group(1)}" if where else missing.group(1)
        return invalid(f"`{field}` is required", field, "missing_required_parameter")
    code = "invalid_type" if ", got " in message else "invalid_value"
    try:
        whole = msgspec.json.decode(body) if len(body) <= LARGE_BYTES else UNKNOWN
    except (msgspec.MsgspecError, RecursionError):
        whole = UNKNOWN
    if not where:
        return invalid(_but("the body must be a JSON object", current_value("", whole)), None, code)
    of_key = "at `key` in" in message
    must, is_now = (
        accepted(kind, where, whole, of_key),
        "" if of_key else current_value(where, whole),
    )
    subject = f"a key of `{where}`" if of_key else f"`{where}`"
    if not of_key and path is not None and "[...]" in path[0]:
        subject, is_now = f"a value of `{where}`", ""
        must = accepted(kind, f"{where}[...]", whole, of_key)
    if not must:
        return invalid(f"{subject} is not supported; leave it out", where, code)
    return invalid(_but(f"{subject} must be {must}", is_now), where, code)


def _but(must: str, is_now: str) -> str:
    return f"{must}, and is {is_now}" if is_now else must


def _meant(field: str, kind: type) -> str:
    """The known field of `kind` that an unknown one is closest to, as the end of a message."""
    known = [info.encode_name for info in msgspec.structs.fields(kind)]
    near = get_close_matches(field[:100], known, n=1, cutoff=0.75)
    return f"; did you mean `{near[0]}`?" if near else ""
