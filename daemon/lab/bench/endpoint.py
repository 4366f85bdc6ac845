"""The endpoint's model and the form of request that it takes: asked once, before the load."""

from typing import Any, Literal

import msgspec
import numpy as np

from daemon.client.address import refusal_text
from daemon.client.sse import UNREADABLE, usage_of
from daemon.lab.bench.client import Client
from daemon.lab.bench.errors import BenchError
from daemon.lab.bench.prompts import FIRST_ID, Int64, as_text

PromptForm = Literal["ids", "text"]
PROBE_TOKENS = 64
NOT_UNDERSTOOD = (400, 404, 415, 422, 500)
"""Statuses with which servers refuse a body of unknown form."""


class _Card(msgspec.Struct):
    """A model of `GET /v1/models`."""

    id: str
    max_model_len: int | None = None


class Cards(msgspec.Struct):
    """The answer to `GET /v1/models`."""

    data: list[_Card]


class Form(msgspec.Struct, frozen=True):
    """The form of a request."""

    model: str
    chat: bool = False
    prompt: PromptForm = "ids"
    ignore_eos: bool = True
    n: int = 1  # choices
    extra_tokens: int = 0  # tokens that the server adds to a text, such as a chat template's

    @property
    def path(self) -> str:
        """The path of requests."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, ids: Int64, num_output: int, stream: bool = True) -> bytes:
        """The body of a request whose prompt is to have `len(ids)` tokens. A single choice is
        greedy; several are sampled, as servers refuse equal ones.
        """
        fields: dict[str, Any] = {"model": self.model}
        if self.prompt == "ids":
            fields["prompt"] = ids.tolist()
        else:
            text = as_text(ids[: max(1, ids.size - self.extra_tokens)])
            if self.chat:
                fields["messages"] = [{"role": "user", "content": text}]
            else:
                fields["prompt"] = text
        fields |= {"max_tokens": num_output, "temperature": 0, "stream": stream}
        if self.n > 1:
            fields |= {"n": self.n, "temperature": 1}
        if stream:
            fields["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            fields["ignore_eos"] = True
        return msgspec.json.encode(fields)


async def find_model(client: Client, wanted: str) -> _Card:
    """Find the model by name, or the first; its length is None where the server does not say.

    Raises BenchError.
    """
    status, body = await client.get("/v1/models")
    if status == 404 and wanted:
        return _Card(wanted)
    if status != 200:
        raise BenchError(f"{client.url}/v1/models: HTTP {status}: {refusal_text(body)}")
    try:
        cards = msgspec.json.decode(body, type=Cards).data
    except UNREADABLE as error:
        raise BenchError(f"{client.url}/v1/models is not OpenAI's: {error}") from error
    if not cards:
        raise BenchError(f"{client.url} serves no model")
    for card in cards:
        if card.id == (wanted or card.id):
            return card
    names = ", ".join(card.id for card in cards)
    raise BenchError(f"{client.url} does not serve {wanted}; it serves {names}")


async def settle_form(client: Client, form: Form, notes: list[str]) -> Form:
    """Find the form of request that the server takes, with one or two small requests.

    If token ids are refused, prompts become words, with a note. Raises BenchError if no form works.
    """
    status, body = await _probe(client, form)
    if form.prompt == "ids" and status in NOT_UNDERSTOOD:
        refusal = refusal_text(body)
        form = msgspec.structs.replace(form, prompt="text")
        status, body = await _probe(client, form)
        if status == 200:
            notes.append(
                f"the server takes no token ids (it said: {refusal}): prompts are words, as with "
                "--prompt-form text, and their lengths are the server's counts"
            )
    if status != 200:
        hint = "; does it know ignore_eos? (--no-ignore-eos)" if form.ignore_eos else ""
        raise BenchError(f"{client.url}{form.path}: HTTP {status}: {refusal_text(body)}{hint}")
    if form.prompt == "ids":
        return form
    try:
        counted = usage_of(body).prompt_tokens
    except UNREADABLE as error:
        raise BenchError(f"{client.url}{form.path} is not OpenAI's: {error}") from error
    return msgspec.structs.replace(form, extra_tokens=max(0, counted - PROBE_TOKENS))


async def _probe(client: Client, form: Form) -> tuple[int, bytes]:
    ids = FIRST_ID + np.arange(PROBE_TOKENS)
    return await client.post(form.path, form.body(ids, 1, stream=False))
