"""/tokenize and /detokenize, and texts that are too long to be tokenized whole."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tokenizers import Encoding, Tokenizer

from daemon.api.replies.errors import ApiError
from daemon.api.text.markers import MarkerTokens
from daemon.api.text.text import PIECE_LETTERS, Text
from daemon.protocol.api import Serving
from tests.api.scripted import MAX_LEN, MODEL, ScriptedRuntime

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "look_up", "description": "finds words"}}


async def ask(http: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a good request."""
    async with http.post(path, json=body) as got:
        assert got.status == 200, await got.text()
        answer: dict[str, Any] = await got.json()
    return answer


@pytest.mark.parametrize("root", ["", "/v1"])
async def test_a_text_and_its_tokens(runtime, http, words: Tokenizer, root: str):
    ids = words.encode("hello world").ids
    body = {"model": MODEL, "prompt": "hello world", "return_token_strs": True}
    answer = await ask(http, f"{root}/tokenize", body)
    assert answer == {
        "count": len(ids),
        "max_model_len": MAX_LEN,
        "tokens": ids,
        "token_strs": words.encode("hello world").tokens,
    }
    back = await ask(http, f"{root}/detokenize", {"tokens": ids})
    assert back == {"prompt": "<bos>hello world"}
    plain = await ask(http, f"{root}/tokenize", body | {"add_special_tokens": False})
    assert plain["tokens"] == ids[1:]


async def test_a_conversation(runtime, http, words: Tokenizer):
    whole = await ask(http, "/tokenize", {"messages": HELLO})
    assert words.decode(whole["tokens"], skip_special_tokens=False) == (
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert whole["token_strs"] is None
    body = {"messages": HELLO, "add_generation_prompt": False, "add_special_tokens": True}
    bare = await ask(http, "/tokenize", body)
    assert words.decode(bare["tokens"], skip_special_tokens=False) == (
        "<bos><|im_start|>user\nhello<|im_end|>\n"
    )
    told = await ask(http, "/tokenize", {"messages": HELLO, "tools": [TOOL]})
    assert "look_up" in words.decode(told["tokens"])


async def test_a_chat_has_as_many_prompt_tokens(runtime: ScriptedRuntime, http):
    counted = await ask(http, "/tokenize", {"messages": HELLO})
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 1}
    answered = await ask(http, "/v1/chat/completions", body)
    assert counted["count"] == answered["usage"]["prompt_tokens"]


async def test_more_tokens_than_fit_are_counted(runtime, http):
    answer = await ask(http, "/tokenize", {"prompt": "x y" * MAX_LEN, "model": None})
    assert answer["count"] > answer["max_model_len"]


@pytest.mark.parametrize(
    ("path", "param", "body", "status"),
    [
        ("/tokenize", "prompt", {}, 400),
        ("/tokenize", "prompt", {"prompt": "a", "messages": HELLO}, 400),
        ("/tokenize", "prompt", {"prompt": "x " * 90_000}, 400),
        ("/tokenize", "messages", {"messages": []}, 400),
        ("/tokenize", "messages", {"messages": [{"role": "user", "content": "x" * 9000}]}, 400),
        ("/tokenize", "add_generation_prompt", {"prompt": "", "add_generation_prompt": True}, 400),
        ("/tokenize", "tools", {"prompt": "", "tools": []}, 400),
        ("/tokenize", "chat_template", {"messages": HELLO, "chat_template": "x"}, 400),
        ("/tokenize", "model", {"model": "other", "prompt": "a"}, 404),
        ("/detokenize", "tokens", {}, 400),
        ("/detokenize", "tokens[0]", {"tokens": [-1]}, 400),
        ("/detokenize", "tokens", {"tokens": [400]}, 400),
        ("/detokenize", "tokens", {"tokens": [1] * (MAX_LEN + 1)}, 400),
        ("/detokenize", "model", {"tokens": [1], "model": "other"}, 404),
    ],
)
async def test_refusals(runtime, http, path: str, param: str, body: dict[str, Any], status: int):
    async with http.post(path, json=body) as got:
        assert got.status == status
        assert (await got.json())["error"]["param"] == param


class Watched:
    """A tokenizer that notes how many letters it was given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.letters: list[int] = []

    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> list[Encoding]:
        self.letters += [len(text) for text in texts]
        found: list[Encoding] = self._tokenizer.encode_batch_fast(
            texts, add_special_tokens=add_special_tokens
        )
        return found


def serving_of(folder: Path, vocab_size: int = 400) -> Serving:
    return Serving(MODEL, str(folder), True, False, 64, 64, 4, vocab_size, "ready")


async def test_a_text_that_cannot_fit_is_not_tokenized_whole(folder):
    text, serving = Text(folder), serving_of(folder)
    text._longest_token_bytes = 256  # as a tokenizer that knows long runs of spaces has it
    text.tokenizer = watched = Watched(text.tokenizer)
    dense, sparse = "one two " * 500, " assistant" * 103  # of 3 and of 10 letters a token
    for prompt, pieces in ((dense, 1), (sparse + dense, 2)):
        watched.letters.clear()
        with pytest.raises(ApiError) as caught:
            text.encode(prompt, True, serving, "prompt")
        assert caught.value.code == "context_length_exceeded" and caught.value.param == "prompt"
        assert watched.letters == [64 * PIECE_LETTERS] * pieces
    assert (
        len(text.encode("one two " * 40, True, serving, "prompt")) > 64
    )  # the routes count these themselves


async def test_a_token_that_the_model_has_no_row_for_is_named(folder):
    """A tokenizer may have tokens beyond the embedding: none of them reaches a worker."""
    text = Text(folder)
    beyond = text.tokenizer.get_vocab_size()
    text.tokenizer.add_special_tokens(["<extra>"])
    text._highest = beyond
    serving = serving_of(folder, beyond)
    assert text.encode("hello", True, serving, "prompt")
    for param in ("prompt", "messages"):
        with pytest.raises(
            ApiError, match=rf"`{param}` has the token '<extra>' \({beyond}\)"
        ) as got:
            text.encode("hello <extra> again", True, serving, param)
        assert got.value.status == 400 and got.value.param == param
    tokens = MarkerTokens({"<tool_call>": beyond, "a": 1}, {beyond: "x", 1: "a"}, (2, beyond))
    assert tokens.below(beyond) == MarkerTokens({"a": 1}, {1: "a"}, (2,))


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [1, 400]},
        {"prompt": [[1], [400]]},
        {"prompt": "a", "logit_bias": {"400": 1}},
        {"prompt": "a", "stop_token_ids": [400]},
    ],
)
async def test_ids_beyond_the_vocabulary_are_refused_wherever_they_stand(runtime, http, body):
    async with http.post("/v1/completions", json={"model": MODEL, **body}) as got:
        assert got.status == 400, await got.text()
