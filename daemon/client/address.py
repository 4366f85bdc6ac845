"""Where a server is, and what it says when it refuses."""

import msgspec

from daemon.client.sse import UNREADABLE, error_text


class AddressError(Exception):
    """No address of a server; the message says why."""


def base_url(text: str) -> str:
    """A server's address without its last slash or `/v1`. Raises AddressError."""
    url = text if "://" in text else f"http://{text}"
    if not url.startswith(("http://", "https://")):
        raise AddressError(f"{text} is not an HTTP address")
    return url.rstrip("/").removesuffix("/v1")


def refusal_text(body: bytes) -> str:
    """What a server says in an answer that is an error."""
    try:
        decoded = msgspec.json.decode(body)
    except UNREADABLE:
        return body.decode(errors="replace")
    if isinstance(decoded, dict) and "error" in decoded:
        return error_text(decoded["error"])
    return error_text(decoded)
