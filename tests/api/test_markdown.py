"""Markdown for the page: what may come of a text, and that it may grow."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.api.page.markdown import TAGS, Node, parser, render
from daemon.config.keys import hash_of, new_key
from daemon.config.schema import KeyConfig
from daemon.protocol.api import Access
from tests.api.scripted import ScriptedRuntime
from tests.api.test_keys import bearer
from tests.api.test_page import OPEN, let_in
from tests.soak import tries

PARSER = parser()


def blocks(text: str) -> list[Any]:
    return render(text, PARSER).blocks


def elements(nodes: list[Any]) -> Iterator[tuple[str, dict[str, str]]]:
    for node in nodes:
        if not isinstance(node, str):
            tag, attributes, children = node
            yield tag, attributes
            yield from elements(children)


def words(nodes: list[Any]) -> str:
    return "".join(node if isinstance(node, str) else words(node[2]) for node in nodes)


EXAMPLES: list[tuple[str, list[Node]]] = [
    ("", []),
    ("a *b*\nc", [["p", {}, ["a ", ["em", {}, ["b"]], ["br", {}, []], "c"]]]),
    ("## A", [["h2", {}, ["A"]]]),
    ("```py x\n<b>\n```", [["pre", {"language": "py"}, ["<b>\n"]]]),
    ("```\nopen", [["pre", {}, ["open"]]]),
    ("3. a\n4. b", [["ol", {"start": "3"}, [["li", {}, ["a"]], ["li", {}, ["b"]]]]]),
    ("- a\n\n- b", [["ul", {}, [["li", {}, [["p", {}, ["a"]]]], ["li", {}, [["p", {}, ["b"]]]]]]]),
    ("~~a~~ `b`", [["p", {}, [["s", {}, ["a"]], " ", ["code", {}, ["b"]]]]]),
    ("[a](http://b)", [["p", {}, [["a", {"href": "http://b"}, ["a"]]]]]),
    ("https://a.b/c", [["p", {}, [["a", {"href": "https://a.b/c"}, ["https://a.b/c"]]]]]),
    ("see readme.md", [["p", {}, ["see readme.md"]]]),
    ("![a](http://b/c.png)", [["p", {}, [["a", {"href": "http://b/c.png"}, ["a"]]]]]),
    ("![a](data:image/png;base64,AA)", [["p", {}, ["a"]]]),
    ("<img src=x onerror=alert(1)>", [["p", {}, ["<img src=x onerror=alert(1)>"]]]),
    ("<b>\nx", [["p", {}, ["<b>", ["br", {}, []], "x"]]]),
    ("[a](file.md)", [["p", {}, ["a"]]]),
    ("&lt;b&gt; &amp;", [["p", {}, ["<b> &"]]]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "made"), EXAMPLES)
def test_what_comes_of_a_text(text: str, made: list[Node]) -> None:
    assert blocks(text) == made


def test_cells_are_aligned() -> None:
    (table,) = blocks("| a | b |\n|:-:|--:|\n| 1 | 2 |\n")
    aligned = [attributes for tag, attributes in elements([table]) if tag in {"th", "td"}]
    assert aligned == [{"align": "center"}, {"align": "right"}] * 2


ADDRESSES = [
    *("javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\nscript:alert(1)", "vbscript:x"),
    *("data:text/html,<script>", "file:///etc/passwd", "//evil.example", "/status", "#x", "x:y"),
    *("&#106;avascript:alert(1)", "%6aavascript:alert(1)", " javascript:alert(1)", "http:evil"),
    *("\x01javascript:alert(1)", "javascript&colon;alert(1)", "blob:http://a/b", "[::1"),
]
FORMS = ["[a]({})", "[a](<{}>)", "<{}>", "![a]({})", "[a][r]\n\n[r]: {}", "{}"]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("form", FORMS)
def test_links_lead_to_the_web_or_to_mail_alone(form: str, address: str) -> None:
    for tag, attributes in elements(blocks(form.format(address))):
        if tag == "a":
            assert re.match(r"(https?|mailto):", attributes["href"])


MARKS = st.sampled_from(
    [
        *("*", "**", "_", "`", "```", "~~~\n", "[", "](", ")", "!", "<", ">", "> ", "- ", "1. "),
        *("2) ", "# ", "#", "|", "| a |\n", "|---|\n", "---\n", "===\n", "\n", "\n\n", "    "),
        *("\t", " ", "\\", "<script>", "javascript:", "http://a.b", "&#106;", "a", "b c", "~~"),
        *("<!--", "]: ", "\n- "),
    ]
)
TEXTS = st.lists(MARKS | st.text(max_size=3), max_size=60).map("".join)


@settings(max_examples=tries(100, 10_000), deadline=None)
@given(text=TEXTS)
def test_nothing_comes_of_any_text_but_what_the_page_knows(text: str) -> None:
    for tag, attributes in elements(blocks(text)):
        assert tag in TAGS
        assert set(attributes) <= {"href", "start", "align", "language"}
        assert ("href" in attributes) == (tag == "a")
        assert attributes.get("align", "left") in {"left", "center", "right"}
        assert re.match(r"(https?|mailto):", attributes.get("href", "http:"))


@settings(max_examples=tries(100, 10_000), deadline=None)
@given(text=TEXTS.filter(lambda text: "]:" not in text), sizes=st.lists(st.integers(1, 9)))
def test_a_text_that_grows_is_rendered_as_if_it_had_come_whole(text: str, sizes: list[int]) -> None:
    """As the page does it: what is final is never looked at again. References come at the end."""
    text = re.sub(r"\r\n?|\x00", "\n", text)
    final: list[Any] = []
    begin = end = 0
    for size in [*sizes, len(text)]:
        end = min(end + size, len(text))
        said = render(text[begin:end], PARSER)
        final += said.blocks[: said.num_final]
        rest = said.blocks[said.num_final :]
        assert final + rest == blocks(text[:end])
        begin += sum(len(line) for line in text[begin:].split("\n")[: said.line]) + said.line


def test_most_of_a_long_text_is_final() -> None:
    said = render("One paragraph.\n\n" * 100, PARSER)
    assert (said.num_final, said.line) == (99, 198)


# Through the API.


async def ask(http: aiohttp.ClientSession, **body: Any) -> tuple[int, Any]:
    async with http.post("/page/markdown", json=body) as got:
        return got.status, await got.json()


@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_asks_for_a_texts_blocks(http: aiohttp.ClientSession) -> None:
    status, said = await ask(http, text="*a*\n\nb 🙂\n\n\n")
    assert status == 200 and said == {
        "blocks": [["p", {}, [["em", {}, ["a"]]]], ["p", {}, ["b 🙂"]]],
        "num_final": 1,
        "line": 2,
    }
    assert (await ask(http, text=""))[1]["blocks"] == []


REFUSED = [
    ({}, "`text` is required"),
    ({"text": 1}, "text"),
    ({"text": "a", "html": True}, "html"),
    ({"text": "a" * 65_537}, "text"),
    ({"text": "![" * 16_000}, "takes too long to render"),
    ({"text": "[" * 40_000}, "takes too long to render"),
]


@pytest.mark.parametrize(("body", "words"), REFUSED)
@pytest.mark.asyncio(loop_scope="session")
async def test_what_cannot_be_rendered_is_refused(
    http: aiohttp.ClientSession, body: dict[str, Any], words: str
) -> None:
    status, said = await ask(http, **body)
    assert status == 400 and words in said["error"]["message"]
    assert (await ask(http, text="still here"))[0] == 200


@pytest.mark.asyncio(loop_scope="session")
async def test_half_a_character_is_refused(http: aiohttp.ClientSession) -> None:
    async with http.post("/page/markdown", data=b'{"text": "\\ud800"}') as got:
        assert got.status == 400


@pytest.mark.asyncio(loop_scope="session")
async def test_it_needs_a_key_and_is_none_of_the_keys_requests(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession
) -> None:
    key = new_key()
    try:
        await let_in(
            runtime, Access((KeyConfig("a", hash_of(key), requests_per_minute=1),), (), ())
        )
        assert (await ask(http, text="a"))[0] == 401
        async with aiohttp.ClientSession(runtime.url, headers=bearer(key)) as keyed:
            for _ in range(5):
                assert (await ask(keyed, text="a"))[0] == 200
    finally:
        await let_in(runtime, OPEN)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_foreign_page_is_refused_and_without_the_page_there_is_nothing(
    runtime: ScriptedRuntime, http: aiohttp.ClientSession, folder: Path
) -> None:
    foreign = {"Origin": "http://evil.example"}
    async with http.post("/page/markdown", json={"text": "a"}, headers=foreign) as got:
        assert got.status == 403
    async with (
        ScriptedRuntime(folder, page=False) as other,
        aiohttp.ClientSession(other.url) as its,
    ):
        assert (await ask(its, text="a"))[0] == 404


def test_a_fork_answers_what_the_function_does() -> None:
    made = msgspec.json.decode(msgspec.json.encode(render("a\n\nb\n\nc", PARSER)))
    assert made["blocks"] == blocks("a\n\nb\n\nc")
