"""Bodies that come slowly, are too rich, or hold anything at all."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.api.answer.prepare import Work, conversation, prepare_chat, prepare_completion
from daemon.api.replies.errors import ApiError, invalid
from daemon.api.request.decode import LARGE_BYTES, MAX_BRACKETS, MAX_COMMAS, BodyDecoder, decode
from daemon.api.request.schema import ChatRequest, CompletionRequest
from daemon.api.sandbox.chat_template import ChatTemplate, read_template
from daemon.api.sandbox.conversation import Rendered
from daemon.api.sandbox.template_process import render
from daemon.api.text.text import Text
from daemon.protocol.api import Serving

CHAT = msgspec.json.Decoder(ChatRequest)
COMPLETION = msgspec.json.Decoder(CompletionRequest)
FIELDS = sorted(
    {
        field.name
        for kind in (ChatRequest, CompletionRequest)
        for field in msgspec.structs.fields(kind)
    }
    - {"model"}
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.text(max_size=4)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0, 1, 2, 0.5, "1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "1"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def text(folder) -> Text:
    return Text(folder)


@pytest.fixture(scope="module")
def template(folder) -> ChatTemplate:
    found = read_template(folder)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "prompt", [b"1," * (MAX_COMMAS + 1), b"[]," * (MAX_BRACKETS + 1), b"{}," * (MAX_BRACKETS + 1)]
)
def test_a_body_of_too_many_elements_is_not_even_decoded(prompt: bytes):
    body = b'{"model":"tiny","prompt":[' + prompt + b"1]}"
    with pytest.raises(ApiError, match="too many elements"):
        decode(COMPLETION, body)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fields=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4), chat=st.booleans())
def test_anything_is_work_or_a_clear_refusal(
    text: Text, template: ChatTemplate, fields: dict[str, Any], chat: bool
):
    start = {"messages": [{"role": "user", "content": "hello"}]} if chat else {"prompt": "hello"}
    serving = Serving("tiny", "", True, False, 256, 256, 4, 400, "ready")
    body = json.dumps({"model": "tiny", **start, **fields}).encode()
    work: Work | ApiError
    try:
        if chat:
            request = decode(CHAT, body)
            said = render(template, conversation(request, serving))
            rendered = msgspec.json.decode(said, type=Rendered)
            if rendered.refusal:
                raise invalid(rendered.refusal)
            work = prepare_chat(request, rendered, text, serving)
        else:
            work = prepare_completion(decode(COMPLETION, body), text, serving)
    except ApiError as error:
        work = error
    if isinstance(work, ApiError):
        assert 400 <= work.status < 500
        assert json.loads(work.body)["error"]["message"]
        return
    for prompt, limit in zip(work.prompts, work.max_tokens, strict=True):
        assert 1 <= len(prompt.tokens) < len(prompt.tokens) + limit <= serving.max_len


async def test_between_two_large_bodies_the_event_loop_hears_others() -> None:
    """Those of many clients, all there at once, may not keep it from answering the daemon."""
    decoding, loop = BodyDecoder(), asyncio.get_running_loop()
    body = b'{"model": "a", "prompt": [' + b"1, " * (LARGE_BYTES // 3) + b"1]}"
    rounds, ended = [0], []

    def count() -> None:
        rounds[0] += 1
        loop.call_soon(count)

    async def one() -> None:
        await decoding.decode(msgspec.json.Decoder(CompletionRequest), body)
        ended.append(rounds[0])

    count()
    await asyncio.gather(*(one() for _ in range(5)))
    assert len(set(ended)) == 5
