"""The page in a real browser, in front of a real API process that follows a script."""

import itertools
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from daemon.protocol.api import AbortRequest, Generate, RequestRejected
from tests.api.browser import MISSING, Browser, Tab, browser
from tests.api.scripted import ScriptedRuntime, saying
from tests.api.test_disconnect import forever
from tests.api.test_metrics import GAUGES
from tests.api.test_page import KEY, KEYED, OPEN, let_in

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
]

ANSWER = """Two *lines*,
and <b>no tags</b>:
```python
if a < b:
    print("`")
```

The end."""
ANSWERS = ".turn.assistant"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    async with browser() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def tab(chromium: Browser, runtime: ScriptedRuntime) -> AsyncIterator[Tab]:
    """The page, with the model's name on it; in the end it asked this server and no other."""
    async with chromium.tab(f"{runtime.url}/") as opened:
        await opened.until("document.querySelector('#model').innerText === 'tiny'")
        yield opened
        assert opened.asked and all(one.startswith(f"{runtime.url}/") for one in opened.asked)


async def ask(tab: Tab, question: str = "hello there") -> None:
    await tab.evaluate("document.querySelector('#question').focus()")
    await tab.type(question)
    await tab.press("Enter")


async def copies(tab: Tab, button: str, text: str) -> None:
    """A click has the text pasted into the question, which is emptied again."""
    await tab.evaluate(f"document.querySelector('{button}').click()")
    await tab.until(f"document.querySelector('{button}').innerText === 'Copied'")
    await tab.evaluate("document.querySelector('#question').focus()")
    await tab.paste()
    await tab.until("document.querySelector('#question').value")
    assert await tab.evaluate("document.querySelector('#question').value") == text
    await tab.evaluate("document.querySelector('#question').value = ''")


async def test_an_answer_stands_as_the_model_said_it(
    tab: Tab, runtime: ScriptedRuntime, words: Tokenizer
):
    runtime.script = saying(words, ANSWER)
    await tab.type("one")
    await tab.press("Enter", shift=True)
    await tab.type("two")
    await tab.press("Enter")
    await tab.until("document.querySelector('.end')")
    assert await tab.text(".turn.user .text") == "one\ntwo"
    texts = "[...document.querySelectorAll('.said > p')].map((p) => p.innerText)"
    assert await tab.evaluate(texts) == ["Two lines,\nand <b>no tags</b>:", "The end."]
    assert await tab.text(".said em") == "lines"
    assert await tab.text(".code code") == 'if a < b:\n    print("`")\n'
    assert await tab.text(".bar span") == "python"
    await copies(tab, ".bar button", 'if a < b:\n    print("`")\n')
    await tab.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined}) && 0")
    await copies(tab, ".end button", ANSWER)  # as over plain HTTP, where there is no clipboard
    said = await tab.text(".end span")
    num_tokens = len(words.encode(ANSWER, add_special_tokens=False).ids) + 1  # and the end's
    assert said.startswith(f"{num_tokens} tokens, ")
    assert "first after" in said and "tokens/s" in said

    # The next question takes the conversation along, settings too; a new chat forgets it.
    first = runtime.of(Generate)[-1]
    await tab.evaluate("document.querySelector('#system').value = 'six seven'")
    await tab.evaluate("document.querySelector('#max-tokens').value = '5'")
    await ask(tab, "three")
    await tab.until("document.querySelectorAll('.end').length === 2")
    second = runtime.of(Generate)[-1]
    prompt = words.decode(second.tokens.tolist())
    assert all(text in prompt for text in ("six seven", "one\ntwo", ANSWER, "three"))
    assert first.max_tokens > second.max_tokens == 5
    assert "cut off" in await tab.evaluate("[...document.querySelectorAll('.end')][1].innerText")
    await tab.evaluate("document.querySelector('#new').click()")
    await tab.until(f"!document.querySelector('{ANSWERS}')")
    assert not tab.complaints


async def test_escape_stops_an_answer_which_stays(tab: Tab, runtime: ScriptedRuntime):
    runtime.script, runtime.interval_s = forever, 0.01
    await ask(tab)
    await tab.until(f"document.querySelector('{ANSWERS} .body').innerText.length > 20")
    assert await tab.evaluate("document.querySelector('#send').hidden")
    await tab.press("Escape")
    await runtime.until(AbortRequest)
    await tab.until("!document.querySelector('#send').hidden")
    assert (await tab.text(".end span")).endswith("stopped")
    runtime.reset()
    kept = await tab.text(f"{ANSWERS} .body")
    await ask(tab, "three")
    await tab.until("document.querySelectorAll('.end').length === 2")
    assert kept[:20] in await tab.evaluate("turns[1].content")
    assert not tab.complaints


async def test_how_busy_it_is_is_shown_again_and_again(tab: Tab, runtime: ScriptedRuntime):
    runtime.send(GAUGES)
    await tab.until("document.querySelector('#running').innerText === '3'")
    assert await tab.text("#waiting") == "6"
    assert await tab.text("#kv") == "40 % of 400 KiB"
    assert "cuda:0" in await tab.text("#state") and "context 256 tokens" in await tab.text("#state")
    assert not tab.complaints


REFUSALS = [
    (RequestRejected(0, "queue_full", "no place", 7.0), "in about 7 s"),
    (
        RequestRejected(0, "too_long", "300 tokens do not fit 256", 0.0),
        "too long for the model: 300",
    ),
    (RequestRejected(0, "not_ready", "loading weights 40 %", 1.0), "Loading weights 40 %. Send"),
]


async def test_a_refusal_is_said_in_words_and_loses_nothing(tab: Tab, runtime: ScriptedRuntime):
    await tab.type("hello there")
    for runtime.reject, words in REFUSALS:
        await tab.press("Enter")
        await tab.until(
            f"document.querySelector('.error[role=alert]')?.innerText.includes('{words}')"
        )
        assert await tab.evaluate("document.querySelector('#question').value") == "hello there"
    runtime.reject = None
    await tab.press("Enter")
    await tab.until("document.querySelector('.end')")
    assert not await tab.text(".error")
    # The browser itself notes each refusal; the page adds nothing.
    assert all("Failed to load resource" in one for one in tab.complaints)


async def test_an_answer_that_fails_midway_stays_with_the_reason(
    tab: Tab, runtime: ScriptedRuntime
):
    runtime.fail_at, runtime.interval_s = 9, 0.01
    await ask(tab)
    await tab.until("document.querySelector('.error')")
    assert await tab.text(".error") == "The engine broke."
    assert "broken off" in await tab.text(".end")
    assert await tab.text(f"{ANSWERS} .body")
    assert not tab.complaints


async def test_a_key_is_asked_for_and_kept_in_the_tab(chromium: Browser, runtime: ScriptedRuntime):
    await let_in(runtime, KEYED)
    try:
        async with chromium.tab(f"{runtime.url}/") as tab:
            await tab.until("document.activeElement.id === 'key'")
            assert "wants an API key" in await tab.text("#state")
            await tab.type("llmd-wrong")
            await tab.press("Enter")
            await tab.until("document.querySelector('#state').innerText.includes('not valid')")
            await ask(tab)
            await tab.until("document.querySelector('.error')")
            assert "not valid here" in await tab.text(".error")
            await tab.evaluate("document.querySelector('#key').select()")
            await tab.type("llmd-“no-header-takes-this”")
            await tab.press("Enter")
            await ask(tab)
            await tab.until("document.querySelector('.error')")
            assert "not valid here" in await tab.text(".error")
            await tab.evaluate("document.querySelector('#key').select()")
            await tab.type(KEY)
            await tab.press("Enter")
            await tab.until("document.querySelector('#model').innerText === 'tiny'")
            assert await tab.evaluate("Object.values(sessionStorage)") == [KEY]
            kept = await tab.evaluate("Object.values(localStorage).join() + document.cookie")
            assert KEY not in kept
            await tab.evaluate("document.querySelector('#question').focus()")
            await tab.press("Enter")
            await tab.until("document.querySelector('.end')")
    finally:
        await let_in(runtime, OPEN)


PARTS = """(async () => {
    const body = document.createElement("div"), answer = new Answer(body);
    for (const delta of %s) {
        answer.take(delta);
        await sleep(%d);
    }
    await answer.end();
    const blocks = (one) => (one.className === "said" ? [...one.children] : [one]);
    return [...body.children].flatMap(blocks).map((one) => one.textContent);
})()"""


async def parts(tab: Tab, deltas: list[dict[str, Any]], pause_ms: int = 0) -> Any:
    """What the page makes of a stream's deltas, block by block."""
    return await tab.evaluate(PARTS % (msgspec.json.encode(deltas).decode(), pause_ms))


TEXTS = [
    ("<think>\nhm</thi</think>\n\nHi", ["Reasoninghm</thi", "Hi"]),
    ("<thing> is\n\nno mark", ["<thing> is", "no mark"]),
    ("````\n```x\n````\nafter", ["codeCopy```x\n", "after"]),
    ("```sh\nls", ["shCopyls"]),
    ("``", ["``"]),
    ("<thi", ["<thi"]),
    ("a [b] c\r\n\r\nd\n\n[b]: http://e", ["a b c", "d"]),
    ("para\n#\n#tag\n\n| a |\n|---|\n| b |\n\nend", ["para", "", "#tag", "ab", "end"]),
]


async def test_thoughts_calls_and_code_have_blocks_however_they_come(tab: Tab):
    call = {"index": 0, "function": {"name": "add", "arguments": '{"a":'}}
    rest = {"index": 0, "function": {"arguments": " 1}"}}
    deltas = [{"reasoning_content": "Let "}, {"reasoning_content": "me."}, {"content": "Yes"}]
    deltas += [{"tool_calls": [call]}, {"tool_calls": [rest]}]
    assert await parts(tab, deltas) == ["ReasoningLet me.", "Yes", 'Call of add{"a": 1}']
    for (text, blocks), size in itertools.product(TEXTS, (1, 7, 100)):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        said = [{"content": piece} for piece in pieces]
        assert await parts(tab, said, 2 * size) == blocks, text


NODES = """nodeOf(["p", {}, [
    ["script", {}, ["alert(1)"]],
    ["img", {"src": "http://evil.example/x", "onerror": "alert(1)"}, []],
    ["a", {"href": "javascript:alert(1)"}, ["x"]],
    ["a", {"href": "https://a.b/", "onclick": "y"}, ["z"]],
]]).outerHTML"""


async def test_the_page_makes_no_other_elements_whatever_it_is_told(tab: Tab):
    made = await tab.evaluate(NODES)
    link = '<a href="https://a.b/" rel="noopener noreferrer nofollow" target="_blank">z</a>'
    assert made == f"<p><span>alert(1)</span><span></span><span>x</span>{link}</p>"
    assert not tab.complaints


async def test_what_cannot_be_rendered_is_shown_as_it_is(tab: Tab):
    text = "![" * 16_000  # slower than the server allows
    assert await parts(tab, [{"content": text}]) == [text]
    long = "*a*\n\n" + "b" * 70_000
    assert await parts(tab, [{"content": long}]) == [long]


SLOW_ONCE = """(async () => {
    const rendered = server.markdown, shown = new Markdown(make("div"));
    server.markdown = async (text) => { await sleep(600); return rendered.call(server, text); };
    shown.set("a");
    while (!shown.rendered) await sleep(10);
    const { waitMs } = shown;
    server.markdown = rendered;
    await shown.end();
    return waitMs;
})()"""


async def test_a_rendering_that_takes_long_does_not_hold_up_the_next_ones(tab: Tab):
    """The first one waits until the renderer has started: several seconds on a busy machine."""
    assert 0 < await tab.evaluate(SLOW_ONCE) <= 1000


TITLES = "[...document.querySelectorAll('#chat-list .open')].map((one) => one.textContent)"
QUESTIONS = "[...document.querySelectorAll('.turn.user .text')].map((one) => one.textContent)"
TURNS = "document.querySelectorAll('.turn').length"


def click(selector: str) -> str:
    return f"document.querySelector({selector!r}).click()"


async def answered(tab: Tab, count: int) -> None:
    await tab.until(f"document.querySelectorAll('.end').length === {count} && !running")


async def change_first(tab: Tab, text: str) -> None:
    """Edit the first message, if it is not being edited, and send it."""
    await tab.evaluate(f"document.querySelector('.edited') || {click('.turn.user .tools button')}")
    await tab.until("document.activeElement.closest('.turn.edited')")
    await tab.evaluate(f"document.activeElement.value = {text!r}")
    await tab.press("Enter")


async def test_answers_are_made_again_and_questions_changed(
    tab: Tab, runtime: ScriptedRuntime, words: Tokenizer
):
    runtime.script = saying(words, "first")
    await ask(tab, "one")
    await answered(tab, 1)
    await ask(tab, "two")
    await answered(tab, 2)
    runtime.script = saying(words, "second")
    await tab.evaluate(click(".turn:last-of-type .again"))
    await tab.until("turns[3]?.content === 'second'")
    assert await tab.evaluate("turns.map((turn) => turn.content)") == [
        *("one", "first", "two", "second")
    ]
    prompt = words.decode(runtime.of(Generate)[-1].tokens.tolist())
    assert prompt.count("two") == 1 and "second" not in prompt
    # A refusal leaves all as it was, and the changed message at hand.
    runtime.reject = RequestRejected(0, "queue_full", "no place", 7.0)
    await change_first(tab, "three")
    await tab.until("document.querySelector('.error')")
    assert await tab.evaluate("turns.map((turn) => turn.content)") == [
        *("one", "first", "two", "second")
    ]
    assert await tab.evaluate(TURNS) == 4
    # What followed a changed message is gone once there is another answer.
    runtime.reject = None
    await change_first(tab, "four")
    await tab.until("turns.length === 2 && turns[1].content === 'second'")
    assert await tab.evaluate(QUESTIONS) == ["four"]
    assert await tab.evaluate(TURNS) == 2


async def test_chats_are_kept_and_come_back(
    chromium: Browser, tab: Tab, runtime: ScriptedRuntime, words: Tokenizer
):
    runtime.script = saying(words, "an *answer*")
    size = {"width": 1200, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    await tab.call("Emulation.setDeviceMetricsOverride", **size)  # the list is beside the chat
    await tab.evaluate("localStorage.clear()")
    await ask(tab, "about owls")
    await answered(tab, 1)
    await tab.evaluate(click("#new"))
    await tab.until("!document.querySelector('.turn')")
    await ask(tab, "about rivers")
    await answered(tab, 1)
    assert await tab.evaluate(TITLES) == ["about rivers", "about owls"]
    async with chromium.tab(f"{runtime.url}/") as other:
        await other.until("document.querySelectorAll('#chat-list .open').length === 2")
        await other.evaluate("document.querySelectorAll('#chat-list .open')[1].click()")
        await other.until("document.querySelector('.said em')")
        assert await other.evaluate(QUESTIONS) == ["about owls"]
        assert "tokens" in await other.text(".end span")
        await ask(other, "more of them")
        await answered(other, 2)
        prompt = words.decode(runtime.of(Generate)[-1].tokens.tolist())
        assert all(text in prompt for text in ("about owls", "an *answer*", "more of them"))
        assert not other.complaints
    # The other tab hears of it; names change, and a second click deletes.
    await tab.until(f"{TITLES}[0] === 'about owls'")
    await tab.evaluate(click("#chat-list .quiet"))
    await tab.evaluate("document.activeElement.value = 'night birds'")
    await tab.press("Enter")
    assert await tab.evaluate(TITLES) == ["night birds", "about rivers"]
    for _ in range(2):
        await tab.evaluate(click("#chat-list li .quiet:last-child"))
    await tab.until(f"{TITLES}.length === 1")
    assert await tab.evaluate("Object.keys(localStorage).length") == 1
    assert await tab.evaluate(QUESTIONS) == ["about rivers"]
    assert not tab.complaints


FILL = """(() => {
    localStorage.clear();
    localStorage.setItem("llmd.chat.bad", "{");
    localStorage.setItem("llmd.chat.worse", '{"title": "a", "turns": [null]}');
    const turns = [{ role: "user", content: "x".repeat(%d) }];
    for (let n = 1; n <= %d; n++) chats.save({ id: `${n}`, title: `${n}`, changed: n, turns });
    return chats.list().map((chat) => chat.title);
})()"""


async def test_what_is_kept_is_bounded_and_may_be_nothing(tab: Tab, runtime: ScriptedRuntime):
    assert await tab.evaluate(FILL % (10, 120)) == [str(n) for n in range(120, 20, -1)]
    assert await tab.evaluate(FILL % (600_000, 5)) == ["5", "4", "3"]
    assert await tab.evaluate(FILL % (2_100_000, 1)) == []
    await tab.evaluate(FILL % (10, 2))
    await tab.evaluate("chats.keeps = false")
    assert await tab.evaluate("chats.list()") == []
    await ask(tab)
    await answered(tab, 1)
    assert await tab.evaluate("chats.list()") == []
    await tab.evaluate("localStorage.clear()")
    assert not tab.complaints


async def test_the_header_is_slim_on_a_phone(tab: Tab):
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    await tab.call("Emulation.setDeviceMetricsOverride", **size)
    assert await tab.evaluate("document.querySelector('header').offsetHeight") <= 48
    assert await tab.evaluate("document.documentElement.scrollWidth") == 390
    shelf = "document.querySelector('#shelf').getBoundingClientRect()"
    await tab.until(f"{shelf}.right <= 0")
    await tab.evaluate(click("#menu"))
    await tab.until(f"{shelf}.left === 0")
    await tab.press("Escape")
    await tab.until(f"{shelf}.right <= 0")
    for panel in ("#instances", "#settings"):
        await tab.evaluate(click(f"{panel} summary"))
        box = f"document.querySelector('{panel} .panel').getBoundingClientRect()"
        assert await tab.evaluate(f"{box}.left >= 0 && {box}.right <= 390 && {box}.height > 20")
