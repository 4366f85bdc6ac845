"""From a body's bytes to a typed request, or a 400 that names the field."""

import asyncio
import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TypeVar

import msgspec

from daemon.api.errors import ApiError, invalid

Request = TypeVar("Request")

_UNKNOWN = re.compile(r"unknown field `(.*?)`")
_PATH = re.compile(r" - at (?:`key` in )?`\$\.?(.*?)(?:\[\.\.\.\])?`$")
_MISSING = re.compile(r"missing required field `(.*?)`")
REPLACED = {"functions": "tools", "function_call": "tool_choice"}
"""Fields that OpenAI's API had before those that are served."""

LARGE_BYTES = 256 * 1024
MAX_COMMAS = 2_000_000
MAX_BRACKETS = 200_000
"""Decoding holds the event loop: what would take it longer than 100 ms is refused unread."""


class Decoding:
    """Decodes the bodies of all requests, and one large one at most in a round of the event loop:
    when those of many clients are there at once, all else is heard between them.
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
            return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _named(str(error), decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise invalid(f"the body is not valid JSON: {error}", code="invalid_json") from None


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


def _named(message: str, kind: type) -> ApiError:
    path = _PATH.search(message)
    where = path.group(1) if path else ""
    unknown = _UNKNOWN.search(message)
    if unknown:
        field = f"{where}.{unknown.group(1)}" if where else unknown.group(1)
        if field in REPLACED:
            message = f"`{field}` is deprecated and not supported; use `{REPLACED[field]}`"
            return invalid(message, field, "unsupported_parameter")
        said = f"`{field}` is an unknown field{'' if where else _meant(field, kind)}"
        return invalid(said, field, "unknown_parameter")
    missing = _MISSING.search(message)
    if missing:
        field = f"{where}.{missing.group(1)}" if where else missing.group(1)
        return invalid(f"`{field}` is required", field, "missing_required_parameter")
    said = message[: path.start()] if path else message
    said = f"{said[0].lower()}{said[1:]}"
    if not path or not where:
        return invalid(f"the body cannot be used: {said}", None, "invalid_type")
    code = "invalid_type" if ", got " in said else "invalid_value"
    return invalid(f"`{where}` cannot be used: {said}", where, code)


def _meant(field: str, kind: type) -> str:
    """What was perhaps meant by a field that is not one of `kind`'s."""
    known = [one.encode_name for one in msgspec.structs.fields(kind)]
    near = get_close_matches(field[:100], known, n=1, cutoff=0.75)
    return f"; did you mean `{near[0]}`?" if near else ""
