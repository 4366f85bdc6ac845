"""`llmd chat` against a real API process whose model is scripted, through pipes and a terminal."""

import asyncio
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from daemon.chat.conversation import Conversation
from daemon.chat.prompt import texts
from daemon.protocol.api import AbortRequest, Generate
from daemon.state.request import FinishReason
from tests.api.folder import build, tokenizer
from tests.api.scripted import ScriptedRuntime, saying
from tests.api.waiting import until_ready
from tests.cli.commands import LLMD
from tests.hangs import HANG_S

pytestmark = pytest.mark.asyncio(loop_scope="module")
ANSWER = "hello world"
NOBODY = "http://127.0.0.1:9"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ScriptedRuntime]:
    folder: Path = build(tmp_path_factory.mktemp("chat") / "tiny")
    made = ScriptedRuntime(folder, max_repeated_tokens=300)
    made.serving = msgspec.structs.replace(made.serving, max_len=1024, context_len=1024)
    async with made as runtime:
        await until_ready(runtime.url)
        yield runtime


@pytest_asyncio.fixture(loop_scope="module")
async def runtime(served: ScriptedRuntime) -> ScriptedRuntime:
    served.received.clear()
    served.script, served.interval_s, served.fail_at = saying(tokenizer(), ANSWER), 0.0, None
    served.may_complain = False
    return served


async def run(
    url: str, *words: str | bytes, stdin: bytes = b"", **more: str
) -> tuple[int | None, str, str]:
    """Status, output and error output of one `llmd chat`; `more` is its environment's."""
    process = await asyncio.create_subprocess_exec(
        *(*LLMD, "chat", *words),
        env={**os.environ, "LLMD_URL": url, **more},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(HANG_S):
        out, err = await process.communicate(stdin)
    return process.returncode, out.decode(), err.decode()


class Terminal:
    """`llmd chat` in a terminal of its own."""

    def __init__(self, url: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            # Tests that are a shell's background job hear no Ctrl-C, which is inherited.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execve(sys.executable, [*LLMD, "chat"], {**os.environ, "LLMD_URL": url})
        self.seen = ""
        os.set_blocking(self._fd, False)

    def type(self, text: str) -> None:
        """As from a keyboard."""
        os.write(self._fd, text.encode())

    async def until(self, text: str) -> None:
        """Wait for a text that was not there before."""
        async with asyncio.timeout(HANG_S):
            while text not in self.seen:
                try:
                    self.seen += os.read(self._fd, 4096).decode(errors="replace")
                except BlockingIOError:
                    await asyncio.sleep(0.02)
        self.seen = self.seen.partition(text)[2]

    async def status(self) -> int:
        """Of the command, once it has ended."""
        _, status = await asyncio.to_thread(os.waitpid, self.pid, 0)
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status)


async def test_one_question_is_one_plain_answer(runtime: ScriptedRuntime) -> None:
    assert await run(runtime.url, "hello", "--seed", "3") == (0, f"{ANSWER}\n", "")
    (asked,) = runtime.of(Generate)
    assert asked.sampling.seed == 3


async def test_an_answer_that_repeated_itself_says_so(runtime: ScriptedRuntime) -> None:
    runtime.script = saying(tokenizer(), "hello world " * 400)
    status, out, err = await run(runtime.url, "hello")
    assert status == 0 and out.startswith("hello world") and out.endswith("\n")
    assert err == "(the answer was ended, since it repeated itself)\n"


async def test_a_pipe_follows_the_question(runtime: ScriptedRuntime) -> None:
    status, out, err = await run(runtime.url, "the", "fox", "--stats", stdin=b"hello world\n")
    assert (status, out) == (0, f"{ANSWER}\n")
    assert "tokens, first after" in err
    (asked,) = runtime.of(Generate)
    assert "the fox\n\nhello world" in tokenizer().decode(asked.tokens.tolist())


async def test_what_goes_wrong_is_a_sentence(runtime: ScriptedRuntime) -> None:
    status, out, err = await run(NOBODY, "hello")
    assert (status, out) == (1, "") and err.count("\n") == 1
    assert f"no server answers at {NOBODY}. Start one with `llmd serve`" in err
    status, out, err = await run(runtime.url, "hello", "--model", "other")
    assert (status, out) == (1, "") and "other" in err and err.count("\n") == 1
    status, out, err = await run(runtime.url)
    assert (status, out) == (1, "") and "there is no question" in err
    status, out, err = await run(runtime.url.replace("http:", "https:"), "hello")
    assert (status, out) == (1, "") and "no TLS connection to https://" in err
    status, out, err = await run("ftp://x", "hello")
    assert (status, out) == (1, "") and "is not an HTTP address" in err


async def test_bytes_that_are_no_text_are_asked_all_the_same(runtime: ScriptedRuntime) -> None:
    broken = b"hello \xff world"
    status, out, err = await run(
        runtime.url, broken, "--system", broken, stdin=broken, PYTHONIOENCODING="utf-8:strict"
    )
    assert (status, out, err) == (0, f"{ANSWER}\n", "")


async def test_a_character_that_the_output_lacks_ends_no_answer(runtime: ScriptedRuntime) -> None:
    runtime.script = saying(tokenizer(), "hello ä world")
    status, out, err = await run(runtime.url, "hello", PYTHONIOENCODING="ascii")
    assert (status, err) == (0, "") and out.startswith("hello ?") and out.endswith("world\n")


@pytest.mark.parametrize("closing", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
async def test_closed_streams_are_no_traceback(runtime: ScriptedRuntime, closing: str) -> None:
    command = f'"$@" {closing}'
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", command, "sh", *LLMD, "chat", "--url", runtime.url),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(HANG_S):
        out, err = await process.communicate()
    assert process.returncode == 1 and b"Traceback" not in out + err
    if "2>" not in closing:
        assert b"there is no question" in err


async def test_a_key_that_no_header_takes_is_a_sentence(runtime: ScriptedRuntime) -> None:
    assert await run(runtime.url, "hello", LLMD_API_KEY="sk-a\n") == (0, f"{ANSWER}\n", "")
    status, out, err = await run(runtime.url, "hello", LLMD_API_KEY="a\nb")
    assert (status, out) == (1, "") and "API key" in err and err.count("\n") == 1


HEAD = b"HTTP/1.1 %s\r\nConnection: close\r\n\r\n"
CUT = b'data: {"choices": [{"delta": {"content": "hel"}}]}\n\n'
STRANGERS = {
    "cut": (HEAD % b"200 OK" + CUT, "broke the answer off"),
    "a page": (HEAD % b"502 Bad Gateway" + b"<html>\n<p>no", "answered with HTTP 502"),
    "nothing": (HEAD % b"502 Bad Gateway", "answered with HTTP 502"),
    "controls": (HEAD % b"400 Bad" + b'{"error": {"message": "a\\u001b]0;x\\u0007b"}}', "a]0;xb"),
}


@pytest.mark.parametrize("name", STRANGERS)
async def test_what_strange_servers_answer_is_a_sentence(name: str) -> None:
    sent, said = STRANGERS[name]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        status, out, err = await run(url, "hello", "--model", "m")
        assert status == 1 and said in err and err.lstrip().count("\n") == 1
        assert out == ("hel" if name == "cut" else "")


async def test_an_answer_that_fails_keeps_what_had_come(runtime: ScriptedRuntime) -> None:
    runtime.fail_at, runtime.may_complain = 1, True
    status, out, err = await run(runtime.url, "hello")
    assert status == 1 and ANSWER.startswith(out.strip()) and "the engine broke" in err


async def test_a_conversation_in_a_terminal(runtime: ScriptedRuntime) -> None:
    terminal = Terminal(runtime.url)
    await terminal.until(">>> ")
    terminal.type("the fox\n")
    await terminal.until(ANSWER)
    await terminal.until("tokens")
    await terminal.until(">>> ")
    terminal.type('"""one\nwith\nfox"""\n')
    await terminal.until(ANSWER)
    await terminal.until(">>> ")
    prompt = tokenizer().decode(runtime.of(Generate)[1].tokens.tolist(), skip_special_tokens=False)
    assert prompt.index("the fox") < prompt.index(ANSWER) < prompt.index("one\nwith\nfox")
    terminal.type("/reset\n")
    await terminal.until(">>> ")
    terminal.type("/what\n")
    await terminal.until("/what is no command")
    await terminal.until(">>> ")
    terminal.type("again\n")
    await terminal.until(ANSWER)
    await terminal.until(">>> ")
    last = tokenizer().decode(runtime.of(Generate)[2].tokens.tolist())
    assert "the fox" not in last
    terminal.type("\x04")
    assert await terminal.status() == 0


async def test_a_paste_of_several_lines_is_one_message(runtime: ScriptedRuntime) -> None:
    """A terminal marks a paste where it was asked to, and sends its line ends as Enter."""
    terminal = Terminal(runtime.url)
    await terminal.until("\x1b[?2004h")
    await terminal.until(">>> ")
    terminal.type("\x1b[200~the\rfox\r\r\tone\r\x1b[201~")
    await asyncio.sleep(0.3)
    assert not runtime.of(Generate), "it was sent before Enter"
    terminal.type("\r")
    await terminal.until(ANSWER)
    await terminal.until(">>> ")
    terminal.type('\x1b[200~"""the\r"""\rwith\x1b[201~\r')
    await terminal.until(ANSWER)
    await terminal.until(">>> ")
    terminal.type("/bye\r")
    assert await terminal.status() == 0
    first, second = runtime.of(Generate)
    text = tokenizer().decode(first.tokens.tolist(), skip_special_tokens=False)
    assert "the\nfox\n\n\tone" in text
    text = tokenizer().decode(second.tokens.tolist(), skip_special_tokens=False)
    assert '"""the\n"""\nwith' in text, "quotes in a paste are the user's own"


def endless(_message: Generate, _stream: int) -> Iterator[tuple[int, FinishReason]]:
    while True:
        yield tokenizer().encode(" fox", add_special_tokens=False).ids[0], FinishReason.NONE


async def test_ctrl_c_ends_an_answer_and_not_the_chat(runtime: ScriptedRuntime) -> None:
    runtime.script, runtime.interval_s = endless, 0.05
    terminal = Terminal(runtime.url)
    await terminal.until(">>> ")
    terminal.type("go\n")
    async with asyncio.timeout(HANG_S):
        while not runtime.of(Generate):
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.5)
    terminal.type("\x03")
    await terminal.until("(the answer was ended)")
    async with asyncio.timeout(HANG_S):
        while not runtime.of(AbortRequest):
            await asyncio.sleep(0.02)
    await terminal.until(">>> ")
    terminal.type("/bye\n")
    assert await terminal.status() == 0


async def test_what_ends_a_process_ends_a_chat_in_mid_answer(runtime: ScriptedRuntime) -> None:
    runtime.script, runtime.interval_s = endless, 0.05
    terminal = Terminal(runtime.url)
    await terminal.until(">>> ")
    terminal.type("go\n")
    await terminal.until("fox fox")
    os.kill(terminal.pid, signal.SIGTERM)
    async with asyncio.timeout(HANG_S):
        assert await terminal.status() == 128 + signal.SIGTERM


async def test_no_control_character_reaches_a_terminal(runtime: ScriptedRuntime) -> None:
    from io import StringIO

    from daemon.chat.screen import Screen

    class Tty(StringIO):
        def isatty(self) -> bool:
            return True

    shown, piped = Tty(), StringIO()
    text = "a\x1b]0;owned\x07b\x9b2Jc\td\ne\r"
    Screen(shown, StringIO()).answer(text)
    Screen(piped, StringIO()).answer(text)
    assert shown.getvalue() == "a]0;ownedb2Jc\td\ne"
    assert piped.getvalue() == text


async def test_texts_and_turns() -> None:
    lines = iter(["", "one", ' """two', "", 'three"""', '"""four"""', '"""cut'])

    def read(_before: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    assert list(texts(read)) == ["one", "two\n\nthree", "four"]
    conversation = Conversation("be brief")
    conversation.ask("a")
    conversation.answered("")
    assert conversation.messages == [{"role": "system", "content": "be brief"}]
