"""Which model, which form of request: settled before the load."""

import json

import numpy as np
import pytest

from daemon.client.address import AddressError, base_url
from daemon.lab.bench.client import Client
from daemon.lab.bench.endpoint import Form, find_model, settle_form
from daemon.lab.bench.errors import BenchError
from tests.lab.bench.scripted import MODEL, TEMPLATE_TOKENS, Body, ScriptedServer

IDS = np.arange(1000, 1050)


async def settled(server: ScriptedServer, form: Form) -> tuple[Form, list[str]]:
    notes: list[str] = []
    async with Client(server.url, "", 5.0) as client:
        return await settle_form(client, form, notes), notes


async def test_the_first_model_or_the_named_one(server: ScriptedServer) -> None:
    server.cards.append({"id": "other"})
    async with Client(f"{server.url}/v1/", "", 5.0) as client:
        first = await find_model(client, "")
        assert (first.id, first.max_model_len) == (MODEL, 100)
        assert (await find_model(client, "other")).max_model_len is None
        with pytest.raises(BenchError, match="does not serve nothing; it serves scripted, other"):
            await find_model(client, "nothing")


async def test_token_ids_are_taken(server: ScriptedServer) -> None:
    form, notes = await settled(server, Form(MODEL))
    assert form == Form(MODEL) and not notes
    assert len(server.probes[0]["prompt"]) == 64


async def test_where_ids_are_refused_prompts_are_words(server: ScriptedServer) -> None:
    def refuse(body: Body) -> tuple[int, str] | None:
        wrong = not isinstance(body["prompt"], str)
        return (400, json.dumps({"error": {"message": "prompt must be text"}})) if wrong else None

    server.refuse = refuse
    form, (note,) = await settled(server, Form(MODEL))
    assert (form.prompt, form.extra_tokens) == ("text", 0)
    assert "prompt must be text" in note
    assert len(json.loads(form.body(IDS, 4))["prompt"].split()) == IDS.size


async def test_a_chats_template_is_counted(server: ScriptedServer) -> None:
    form, notes = await settled(server, Form(MODEL, chat=True, prompt="text"))
    assert form.extra_tokens == TEMPLATE_TOKENS and not notes
    content = json.loads(form.body(IDS, 4))["messages"][0]["content"]
    assert len(content.split()) + TEMPLATE_TOKENS == IDS.size
    assert len(json.loads(form.body(IDS[:5], 4))["messages"][0]["content"].split()) == 1


async def test_what_nothing_helps_is_an_error_with_the_servers_words(
    server: ScriptedServer,
) -> None:
    server.refuse = lambda _: (422, "ignore_eos: extra fields not permitted")
    with pytest.raises(BenchError, match=r"extra fields not permitted.*--no-ignore-eos"):
        await settled(server, Form(MODEL))
    server.refuse = lambda _: (401, "who are you?")
    with pytest.raises(BenchError, match=r"HTTP 401: who are you\?$"):
        await settled(server, Form(MODEL, ignore_eos=False))


async def test_what_is_no_text_is_not_openais(server: ScriptedServer) -> None:
    server.raw_cards = b'{"data": [{"id": "\xff"}]}'
    async with Client(server.url, "", 5.0) as client:
        with pytest.raises(BenchError, match="/v1/models is not OpenAI's: "):
            await find_model(client, "")
    server.refuse = lambda _: (200, b'{"choices": [{"text": "\xff"}]}')
    with pytest.raises(BenchError, match="/v1/completions is not OpenAI's: "):
        await settled(server, Form(MODEL, prompt="text"))


async def test_nobody_listens() -> None:
    async with Client("127.0.0.1:1", "", 5.0) as client:
        with pytest.raises(BenchError, match=r"GET http://127\.0\.0\.1:1/v1/models: "):
            await find_model(client, "")


@pytest.mark.parametrize(
    "text", ["http://a:1", "http://a:1/", "http://a:1/v1", "http://a:1/v1/", "a:1", "a:1/v1"]
)
def test_addresses(text: str) -> None:
    assert base_url(text) == "http://a:1"


def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(AddressError, match="ftp://a is not an HTTP address"):
        base_url("ftp://a")
