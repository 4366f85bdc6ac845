"""The parser sees the same events wherever the network cuts the bytes."""

import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.client.sse import Event, EventParser
from tests.lab.bench.scripted import event

TEXTS = st.text(max_size=8) | st.sampled_from(["\n", "data: ", "\r\n", "é", "\U0001f989", '"'])


def parsed(pieces: list[bytes]) -> list[Event]:
    parser = EventParser()
    return [one for piece in pieces for one in parser.feed(piece)]


def wire(texts: list[str], newline: str, comments: bool, ascii_only: bool) -> bytes:
    lines = []
    for text in texts:
        body = {"id": "x", "choices": [{"index": 0, "text": text, "finish_reason": None}]}
        lines.append("data: " + json.dumps(body, ensure_ascii=ascii_only))
        lines += ["", ": keep-alive", ""] if comments else [""]
    lines += ["data: [DONE]", "", ""]
    return newline.join(lines).encode()


@given(
    texts=st.lists(TEXTS, max_size=6),
    newline=st.sampled_from(["\n", "\r\n"]),
    comments=st.booleans(),
    ascii_only=st.booleans(),
    cuts=st.lists(st.integers(0, 600), max_size=30),
)
def test_cuts_change_nothing(
    texts: list[str], newline: str, comments: bool, ascii_only: bool, cuts: list[int]
) -> None:
    data = wire(texts, newline, comments, ascii_only)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    seen = [choice.text for one in parsed(pieces) for choice in one.choices or []]
    assert seen == texts


def test_bytes_one_by_one() -> None:
    data = event({"text": "a"}) + event({"text": "b", "finish_reason": "stop"})
    events = parsed([bytes([byte]) for byte in data])
    assert [one.finish_reason for one in events] == [None, "stop"]


@pytest.mark.parametrize(
    ("choice", "tokens"),
    [
        ({"text": "a"}, True),
        ({"text": ""}, True),  # a token without text of its own
        ({"text": "", "finish_reason": "length"}, False),
        ({"text": "a", "finish_reason": "length"}, True),
        ({"delta": {"role": "assistant", "content": ""}}, False),
        ({"delta": {"role": "assistant"}}, False),
        ({"delta": {"role": "assistant", "content": "a"}}, True),
        ({"delta": {"content": "a"}}, True),
        ({"delta": {"reasoning": "hm"}}, True),
        ({"delta": {}, "finish_reason": "stop"}, False),
    ],
)
def test_which_events_carry_tokens(choice: dict[str, object], tokens: bool) -> None:
    assert parsed([event(choice)])[0].has_tokens is tokens


def test_the_counts_come_without_a_choice() -> None:
    counts = {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": None}
    (one,) = parsed([event(usage=counts)])
    assert not one.has_tokens and one.usage is not None
    assert (one.usage.prompt_tokens, one.usage.completion_tokens) == (5, 7)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"error": {"message": "out of blocks", "type": "server_error"}}, "out of blocks"),
        ({"error": "out of blocks"}, "out of blocks"),
        ({"object": "error", "message": "out of blocks"}, "out of blocks"),
        ({"object": "text_completion"}, ""),
    ],
)
def test_faults_in_mid_stream(fault: dict[str, object], said: str) -> None:
    (one,) = parsed([b"data: " + json.dumps(fault).encode() + b"\n\n"])
    assert one.fault == said


def test_what_is_no_event_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        parsed([b"data: {'choices'\n\n"])
    with pytest.raises(msgspec.DecodeError):
        parsed([b'data: {"choices": 3}\n\n'])
