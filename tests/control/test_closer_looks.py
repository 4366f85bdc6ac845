"""What a viewer asks beyond the snapshots: stories and owners, shared for a moment, or refused."""

import asyncio
from pathlib import Path

from daemon.control.client import Message, MessageReader, question
from daemon.control.orders import RefusalError
from daemon.control.server import ControlServer
from daemon.protocol.control import AskOwners, AskStory, BlockOwners, Closer, Story, Watch
from tests.control.test_server import refusal
from tests.hangs import HANG_S
from tests.tui import scenario


class Asked:
    """Answers, and remembers what it was asked."""

    def __init__(self) -> None:
        self.questions: list[Closer] = []

    def __call__(self, asked: Closer) -> Story | BlockOwners:
        self.questions.append(asked)
        if isinstance(asked, AskStory):
            return scenario.story(asked.sequence, 119.0)
        if asked.instance > 1:
            raise RefusalError(f"there is no instance {asked.instance}")
        return scenario.owners(scenario.swapping(1), asked.instance)


async def told(path: Path, sent: bytes, count: int) -> list[Message]:
    """The first answers on one connection."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(sent)
    messages = MessageReader()
    answers: list[Message] = []
    async with asyncio.timeout(HANG_S):
        while len(answers) < count:
            answers += messages.feed(await reader.read(1 << 16))
    writer.close()
    return answers


async def test_a_watcher_asks_closer_on_its_own_connection(path: Path) -> None:
    asked = Asked()
    server = ControlServer(path, lambda: scenario.snapshot(1), look_closer=asked)
    await server.start()
    sent = question(AskStory(1002)) + question(AskOwners(1)) + question(Watch(60.0))
    story, owned, _snapshot = await told(path, sent, 3)
    assert isinstance(story, Story) and isinstance(owned, BlockOwners)
    expected = scenario.story(1002, 119.0)
    assert (story.marks, story.status, story.num_dropped) == (
        expected.marks, expected.status, expected.num_dropped,
    )  # fmt: skip
    assert story.blocks.tolist() == expected.blocks.tolist()
    assert owned.owners.max() >= 1000 and owned.instance == 1
    await server.close()


async def test_the_same_question_is_answered_once_a_moment(path: Path) -> None:
    asked = Asked()
    server = ControlServer(path, lambda: scenario.snapshot(1), look_closer=asked)
    await server.start()
    await told(path, question(AskStory(7)) * 20 + question(AskStory(8)) * 20, 40)
    assert len(asked.questions) < 10
    assert {AskStory(7), AskStory(8)} == set(asked.questions)
    await server.close()


async def test_what_is_not_there_is_refused(path: Path) -> None:
    server = ControlServer(path, lambda: scenario.snapshot(1), look_closer=Asked())
    await server.start()
    assert await refusal(path, question(AskOwners(9))) == "there is no instance 9"
    await server.close()
    server = ControlServer(path, lambda: scenario.snapshot(1))
    await server.start()
    assert "are not known here" in await refusal(path, question(AskStory(9)))
    await server.close()
