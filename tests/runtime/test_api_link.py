"""One link over a real socketpair: ids, rejections, logprobs, rubbish, and the end."""

import logging
import socket
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from daemon.core.values.actions import Deliver, Finished, Rejected, Started
from daemon.core.values.events import Abort, Event, Finish, Predicted, RequestArrived
from daemon.protocol import api as protocol
from daemon.protocol.control import PredictorStatus
from daemon.protocol.worker import Logprobs, PromptLogprobs, Reply
from daemon.runtime.api_link import ApiLink
from daemon.runtime.token_store import TokenStore
from daemon.state.request import FinishReason, sequence_id
from daemon.wire.columns import Column, int32
from tests.runtime.ends import ApiEnd, generate, until
from tests.wire.descriptors import open_descriptors

GENERATION = 3
FIRST = GENERATION << 32


class Link:
    """A link, what it dispatched, and the other end."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.store = TokenStore(4)
        self.events: list[Event] = []
        self.link = ApiLink(self.store, self.events.append, lambda _settled: None)
        self.link.connect(ours, GENERATION)
        self.api = ApiEnd(theirs)

    async def take(self, message: protocol.FromApi) -> Event:
        before = len(self.events)
        self.api.send(message)
        await until(lambda: len(self.events) > before)
        return self.events[-1]

    async def said(self, count: int = 1) -> list[protocol.ToApi]:
        await until(lambda: len(self.api.messages) >= count)
        return self.api.messages


@pytest.fixture
async def line() -> Iterator[Link]:  # type: ignore[misc]
    before = open_descriptors()
    line = Link()
    yield line
    line.link.hang_up()
    line.api.channel.close()
    assert open_descriptors() == before


def reply_of(tokens: list[int], logprobs: Logprobs | None = None) -> Reply:
    return Reply(1, int32(tokens), np.zeros(len(tokens), np.uint8), 0.0, 0.0, logprobs)


def deliver_of(rows: list[int], sequences: list[int], reasons: list[int] | None = None) -> Deliver:
    why = np.array(reasons or [0] * len(rows), np.uint8)
    return Deliver(0, 1, int32(rows), np.array(sequences, np.int64), why)


async def test_messages_become_events_with_ids_of_the_generation(line: Link) -> None:
    event = await line.take(generate(5, [1, 2, 3, 4, 5], 7, n=2))
    assert isinstance(event, RequestArrived)
    assert (event.request, event.num_prompt_tokens, event.max_tokens) == (FIRST + 5, 5, 7)
    assert (event.n, event.priority, len(event.hashes)) == (2, 0, 16)
    assert event.deadline_s == 0.0
    assert (
        sequence_id(FIRST + 5, 0) in line.store._sequences
        and sequence_id(FIRST + 5, 1) in line.store._sequences
    )
    own, core = sequence_id(5, 1), sequence_id(FIRST + 5, 1)
    event = await line.take(protocol.FinishSequence(own))
    assert isinstance(event, Finish) and event.sequence == core
    event = await line.take(protocol.AbortRequest(5))
    assert isinstance(event, Abort) and event.request == FIRST + 5


async def test_who_asked_is_known_to_viewers_for_as_long_as_the_request_lives(line: Link) -> None:
    asked = msgspec.structs.replace(generate(5, [1, 2]), request_id="job-7", key="alice")
    event = await line.take(asked)
    sequence = sequence_id(FIRST + 5, 0)
    assert line.link.client_of(sequence) == ("job-7", "alice")
    assert "job-7" not in repr(event) and "alice" not in repr(event), "the journal has no names"
    line.link.finished(Finished(sequence, int(FinishReason.STOP)))
    assert line.link.client_of(sequence) == ("", "")
    await line.take(msgspec.structs.replace(asked, request=6))
    line.link.rejected(Rejected(FIRST + 6, "full", "", 1.0))
    assert line.link.client_of(sequence_id(FIRST + 6, 0)) == ("", "") and not line.link._clients


async def test_a_deadline_reaches_the_core_as_it_is(line: Link) -> None:
    asked = msgspec.structs.replace(generate(6, [1, 2, 3]), deadline_s=12.5, slo_scale=2.5)
    event = await line.take(asked)
    assert isinstance(event, RequestArrived)
    assert (event.deadline_s, event.slo_scale) == (12.5, 2.5)


async def test_predictions_of_living_requests_become_events(line: Link) -> None:
    await line.take(generate(5, [1, 2, 3]))
    event = await line.take(protocol.PredictedLength(5, 40, 90))
    assert isinstance(event, Predicted)
    assert (event.request, event.num_tokens, event.high_tokens) == (FIRST + 5, 40, 90)
    line.link.finished(Finished(sequence_id(FIRST + 5, 0), int(FinishReason.STOP)))
    line.api.send(protocol.PredictedLength(5, 41, 91))
    event = await line.take(generate(6, [1]))
    assert isinstance(event, RequestArrived), "of a request that is over nobody hears"
    assert len(line.events) == 3


async def test_what_is_said_of_the_predictor_is_kept(line: Link) -> None:
    assert line.link.predictor is None
    status = PredictorStatus("mean", True, 5, 2, 3, 0.25)
    line.api.send(protocol.Predicting(status))
    await until(lambda: line.link.predictor is not None)
    assert line.link.predictor == status and not line.events


async def test_actions_become_messages_with_the_process_s_own_ids(line: Link) -> None:
    await line.take(generate(5, [1], n=2))
    first, second = (sequence_id(FIRST + 5, index) for index in range(2))
    line.link.started(Started(first, 0, 16))
    line.link.deliver(deliver_of([2, 0], [first, second], [0, 2]), reply_of([70, 71, 72]))
    assert len(line.link._live) == 1 and second not in line.store._sequences
    line.link.finished(Finished(first, int(FinishReason.ERROR), "why"))
    assert len(line.link._live) == 0 and not line.store._sequences
    started, tokens, finished = await line.said(3)
    assert started == protocol.SequenceStarted(sequence_id(5, 0), 16)
    assert isinstance(tokens, protocol.Tokens) and tokens.logprobs is None
    assert tokens.sequences.tolist() == [sequence_id(5, 0), sequence_id(5, 1)]
    assert tokens.tokens.tolist() == [72, 70]
    assert tokens.reasons.tolist() == [0, FinishReason.LENGTH]
    assert finished == protocol.SequenceEnded(sequence_id(5, 0), FinishReason.ERROR, "why")


async def test_a_rejected_request_leaves_nothing(line: Link) -> None:
    await line.take(generate(1, [1], n=3))
    line.link.rejected(Rejected(FIRST + 1, "queue_full", "full", 2.5))
    assert len(line.link._live) == 0 and not line.store._sequences
    assert await line.said() == [protocol.RequestRejected(1, "queue_full", "full", 2.5)]


LOGPROBS = Logprobs(
    rows=int32([0, 2, 3]),
    chosen=np.array([-0.5, -2.5, -3.5], np.float32),
    top_ids=int32([1, 2, 21, 22, 31, 32]),
    top_values=np.array([-1, -2, -21, -22, -31, -32], np.float32),
)


@pytest.mark.parametrize(
    ("rows", "at", "chosen", "top_ids"),
    [
        ([0, 1, 2, 3], [0, 2, 3], [-0.5, -2.5, -3.5], [1, 2, 21, 22, 31, 32]),
        ([1, 3], [1], [-3.5], [31, 32]),
        ([2, 3], [0, 1], [-2.5, -3.5], [21, 22, 31, 32]),
        ([3, 0], [1, 0], [-0.5, -3.5], [1, 2, 31, 32]),
        ([1], [], [], []),
    ],
)
async def test_logprobs_of_dropped_rows_are_dropped(
    line: Link, rows: list[int], at: list[int], chosen: list[float], top_ids: list[int]
) -> None:
    sequences = [sequence_id(FIRST + i, 0) for i in range(len(rows))]
    line.link.deliver(deliver_of(rows, sequences), reply_of([5, 6, 7, 8], LOGPROBS))
    (message,) = await line.said()
    assert isinstance(message, protocol.Tokens) and message.logprobs is not None
    assert message.tokens.tolist() == [5 + row for row in rows]
    assert message.logprobs.rows.tolist() == at
    assert message.logprobs.chosen.tolist() == chosen
    assert message.logprobs.top_ids.tolist() == top_ids
    assert message.logprobs.top_values.tolist() == [-float(one) for one in top_ids]


@pytest.mark.parametrize("width", [0, 1])
async def test_logprobs_may_be_of_the_drawn_token_alone(line: Link, width: int) -> None:
    values: Column = np.full(2 * width, -1, np.float32)
    logprobs = Logprobs(int32([0, 1]), np.zeros(2, np.float32), int32([9] * 2 * width), values)
    line.link.deliver(deliver_of([1], [sequence_id(FIRST, 0)]), reply_of([5, 6], logprobs))
    (message,) = await line.said()
    assert isinstance(message, protocol.Tokens) and message.logprobs is not None
    assert message.logprobs.rows.tolist() == [0]
    assert message.logprobs.top_ids.size == message.logprobs.top_values.size == width


async def test_an_answer_that_cannot_go_on_says_why(line: Link) -> None:
    sequences = [sequence_id(FIRST, 0), sequence_id(FIRST + 1, 0)]
    errors = ((1, "its grammar is lost"), (2, "nobody asks any more"))
    reply = msgspec.structs.replace(reply_of([5, 6, 7]), errors=errors)
    line.api.send(generate(0, [1, 2]))
    line.api.send(generate(1, [1, 2]))
    await until(lambda: len(line.events) == 2)
    line.link.deliver(deliver_of([0, 1], sequences, [0, FinishReason.ERROR]), reply)
    (message,) = await line.said()
    assert isinstance(message, protocol.Tokens)
    assert message.errors == ((1, "its grammar is lost"),)
    assert message.reasons.tolist() == [FinishReason.NONE, FinishReason.ERROR]


async def test_prompts_logprobs_reach_living_requests(line: Link) -> None:
    await line.take(generate(0, [1, 2]))
    column: Column = np.float32([-1.5])
    told = [
        PromptLogprobs(sequence_id(FIRST + request, 0), 4, column, int32(), np.zeros(0, np.float32))
        for request in (7, 0)
    ]
    line.link.prompt_logprobs(tuple(told))
    (message,) = await line.said()
    assert isinstance(message, PromptLogprobs)
    assert (message.sequence, message.start) == (sequence_id(0, 0), 4)
    assert message.chosen.tolist() == [-1.5]


async def test_hanging_up_aborts_each_living_request_once(line: Link) -> None:
    for request in range(3):
        await line.take(generate(request, [1], n=2))
    for index in range(2):
        line.link.finished(Finished(sequence_id(FIRST + 1, index), int(FinishReason.STOP)))
    del line.events[:]
    line.link.hang_up()
    aborts = [event.request for event in line.events if isinstance(event, Abort)]
    assert aborts == [FIRST, FIRST + 2]
    for request in (0, 2):
        for index in range(2):
            sequence = sequence_id(FIRST + request, index)
            line.link.finished(Finished(sequence, int(FinishReason.ABORT)))
    del line.events[:]
    line.link.hang_up()
    assert not line.events and not line.store._sequences


async def test_a_process_that_died_is_hung_up(line: Link) -> None:
    await line.take(generate(0, [1]))
    line.api.channel.close()
    await until(lambda: len(line.events) > 1)
    event = line.events[-1]
    assert isinstance(event, Abort) and event.request == FIRST


@pytest.mark.parametrize(
    "rubbish",
    [
        b"",
        b"\xc1",
        b"\x93\xa5Other\1\2",
        b"\x92\xacAbortRequest\xa1x",
        b"\x92\xaaPredicting\xa1\xff",
    ],
)
async def test_rubbish_is_logged_and_the_next_message_taken(
    line: Link, rubbish: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        line.api.channel.send(rubbish)
        await line.take(generate(0, [1]))
    assert [record.message for record in caplog.records] == [
        "the API process sent a message that cannot be read"
    ]
    assert len(line.events) == 1


async def test_a_request_without_a_column_is_rubbish_too(
    line: Link, caplog: pytest.LogCaptureFixture
) -> None:
    line.api.channel.send(b"\x98\xa8Generate\x00\x05\x01\x01\x00\x90\xc4\x00")
    await line.take(generate(1, [1]))
    assert len(caplog.records) == 1 and len(line.link._live) == 1


async def test_a_long_prompt_comes_in_a_memfd(line: Link) -> None:
    event = await line.take(generate(0, list(range(40_000))))
    assert isinstance(event, RequestArrived) and event.num_prompt_tokens == 40_000
    assert line.store.slice(sequence_id(FIRST, 0), 39_998, 2).tolist() == [39_998, 39_999]


async def test_a_token_that_no_model_has_never_reaches_the_core(line: Link) -> None:
    """Its worker would die of it, and all others with it."""
    serving = protocol.Serving("tiny", "", True, False, 256, 256, 4, 400, "ready")
    line.link.send(serving)
    for number, tokens in enumerate(([1, 400], [-1, 2])):
        line.api.send(generate(number, tokens, 7))
    await until(lambda: len(line.api.messages) == 3)
    for number, said in enumerate(line.api.messages[1:]):
        assert isinstance(said, protocol.RequestRejected)
        assert (said.request, said.kind) == (number, "unknown_token")
    assert not line.events
    assert isinstance(await line.take(generate(2, [1, 399], 7)), RequestArrived)
