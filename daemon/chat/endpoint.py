"""The server that a chat talks to: which models it has, and its answers, piece by piece."""

import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from daemon.chat.screen import harmless
from daemon.client.address import refusal_text
from daemon.client.sse import UNREADABLE, Event, EventParser

CONNECT_S = 10.0
_STATUS_WITHOUT_KEY = 401
_STATUS_TOO_MANY = 429
_MOST_SAID = 500
"""Longest refusal that is shown, in characters: another kind of server may answer a whole page."""


class ChatError(Exception):
    """There is no answer; the message is a sentence for the user, safe for a terminal."""

    def __init__(self, sentence: str) -> None:
        super().__init__(harmless(sentence))


class _Entry(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Entry]


class Endpoint:
    """One address, asked with one key."""

    def __init__(self, url: str, api_key: str = "") -> None:
        """`url` is a base URL as `daemon.client.address.base_url` makes it."""
        self.url = url
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def models(self) -> list[str]:
        """The names of the models that are served. Raises ChatError."""
        async with self._answered("GET", "/v1/models") as response:
            try:
                entries = msgspec.json.decode(await response.read(), type=_Models).data
            except UNREADABLE:
                raise ChatError(f"{self.url} does not speak OpenAI's API") from None
        return [entry.id for entry in entries]

    async def stream(self, body: dict[str, Any]) -> AsyncIterator[Event]:
        """The events of one chat completion. Raises ChatError, at any point.

        A stream that ends before its answer does was cut off, even if it closed cleanly.
        """
        has_ended = False
        async with self._answered("POST", "/v1/chat/completions", body) as response:
            parser = EventParser()
            async for data in response.content.iter_any():
                try:
                    events = parser.feed(data)
                except UNREADABLE as error:
                    raise ChatError(f"an event that is not OpenAI's: {error}") from None
                for event in events:
                    if event.fault:
                        raise ChatError(event.fault)
                    has_ended = has_ended or event.finish_reason is not None
                    yield event
        if not has_ended:
            raise ChatError(self._broken_off())

    @asynccontextmanager
    async def _answered(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        try:
            async with (
                aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session,
                session.request(method, self.url + path, json=body) as response,
            ):
                if response.status != 200:
                    raise ChatError(_refused(response, await response.read()))
                yield response
        except aiohttp.ClientSSLError as error:
            raise ChatError(f"no TLS connection to {self.url}: {error}") from None
        except aiohttp.ClientConnectorError:
            raise ChatError(self._no_server()) from None
        except aiohttp.InvalidURL:
            raise ChatError(f"{self.url} is not an address") from None
        except aiohttp.ClientPayloadError:
            raise ChatError(self._broken_off()) from None
        except (aiohttp.ClientError, OSError) as error:
            said = str(error) or type(error).__name__
            raise ChatError(f"the connection to {self.url} broke: {said}") from None

    def _broken_off(self) -> str:
        return f"{self.url} broke the answer off"

    def _no_server(self) -> str:
        here = " Start one with `llmd serve`, or name" if _is_here(self.url) else " Name"
        return f"no server answers at {self.url}.{here} another address with --url."


def _refused(response: aiohttp.ClientResponse, body: bytes) -> str:
    said = " ".join(refusal_text(body).split())[:_MOST_SAID]
    if not said or said.startswith("<"):  # a proxy's page
        return f"{response.url} answered with HTTP {response.status}"
    if response.status == _STATUS_WITHOUT_KEY:
        return f"{said} (give one with --api-key, or in LLMD_API_KEY)"
    wait_s = response.headers.get("Retry-After", "")
    if response.status == _STATUS_TOO_MANY and wait_s:
        return f"{said} (try again in {wait_s} s)"
    return said


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
