"""`llmd chat` against a real API process whose model is scripted, through pipes and a terminal."""

import asyncio
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from daemon.chat.conversation import Conversation
from daemon.chat.prompt import texts
from daemon.request import FinishReason
from daemon.runtime.protocol import Abort, Generate
from tests.api.folder import build, tokenizer
from tests.api.scripted import ScriptedRuntime, saying
from tests.api.waiting import until_ready
from tests.cli.commands import LLMD

pytestmark = pytest.mark.asyncio(loop_scope="module")
ANSWER = "hello world"
NOBODY = "http://127.0.0.1:9"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ScriptedRuntime]:
    folder: Path = build(tmp_path_factory.mktemp("chat") / "tiny")
    async with ScriptedRuntime(folder) as runtime:
        await until_ready(runtime.url)
        yield runtime


@pytest_asyncio.fixture(loop_scope="module")
async def runtime(served: ScriptedRuntime) -> ScriptedRuntime:
    served.received.clear()
    served.script, served.interval_s, served.fail_at = saying(tokenizer(), ANSWER), 0.0, None
    served.may_complain = False
    return served


async def run(url: str, *words: str, stdin: bytes = b"") -> tuple[int | None, str, str]:
    """Status, output and error output of one `llmd chat`."""
    process = await asyncio.create_subprocess_exec(
        *(*LLMD, "chat", *words),
        env={**os.environ, "LLMD_URL": url},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
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
        async with asyncio.timeout(60):
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


async def test_a_pipe_follows_the_question(runtime: ScriptedRuntime) -> None:
    status, out, err = await run(runtime.url, "the", "fox", "--stats", stdin=b"hello world\n")
    assert (status, out) == (0, f"{ANSWER}\n")
    assert "tokens, first after" in err
    (asked,) = runtime.of(Generate)
    assert "the fox\n\nhello world" in tokenizer().decode(asked.tokens.tolist())


async def test_what_goes_wrong_is_a_sentence(runtime: ScriptedRuntime) -> None:
    status, out, err = await run(NOBODY, "hello")
    assert (status, out) == (1, "") and err.count("\n") == 1
    assert f"nobody serves at {NOBODY}. Start one with `llmd serve`" in err
    status, out, err = await run(runtime.url, "hello", "--model", "other")
    assert (status, out) == (1, "") and "other" in err and err.count("\n") == 1
    status, out, err = await run(runtime.url)
    assert (status, out) == (1, "") and "there is no question" in err
    status, out, err = await run("ftp://x", "hello")
    assert (status, out) == (1, "") and "is not an HTTP address" in err


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
    await terminal.until("/what is no order")
    await terminal.until(">>> ")
    terminal.type("again\n")
    await terminal.until(ANSWER)
    await terminal.until(">>> ")
    last = tokenizer().decode(runtime.of(Generate)[2].tokens.tolist())
    assert "the fox" not in last
    terminal.type("\x04")
    assert await terminal.status() == 0


async def test_ctrl_c_ends_an_answer_and_not_the_chat(runtime: ScriptedRuntime) -> None:
    def endless(message: Generate, _stream: int):
        while True:
            yield tokenizer().encode(" fox", add_special_tokens=False).ids[0], FinishReason.NONE

    runtime.script, runtime.interval_s = endless, 0.05
    terminal = Terminal(runtime.url)
    await terminal.until(">>> ")
    terminal.type("go\n")
    async with asyncio.timeout(60):
        while not runtime.of(Generate):
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.5)
    terminal.type("\x03")
    await terminal.until("(the answer was ended)")
    async with asyncio.timeout(60):
        while not runtime.of(Abort):
            await asyncio.sleep(0.02)
    await terminal.until(">>> ")
    terminal.type("/bye\n")
    assert await terminal.status() == 0


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
