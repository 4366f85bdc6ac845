"""ARCHITECTURE.md's worked example: the Core, and what it is sent, say the same today."""

import re

import numpy as np
import pytest

from benchmarks.one_request import BODY, Line, recorded, shown, written
from daemon.core.core import Core
from daemon.core.values.events import (
    Configured,
    Event,
    InstanceConfig,
    Predicted,
    RequestArrived,
    StepDone,
    WorkerReady,
)
from daemon.state.request import FinishReason

REFRESH = "refresh it: python -m benchmarks.one_request --write"
CONFIGURED = Configured(
    now=0.0,
    instances=(InstanceConfig("cpu", "mixed", "cpu"),),
    policy="speculative",
    block_size=16,
    max_running=256,
    max_batch_tokens=512,
    prefill_chunk=512,
    max_waiting=1024,
    max_len=2048,
    prefix_cache=True,
)


def timeless(lines: list[Line]) -> list[Line]:
    """Steps take as long as they take."""
    return [(who, re.sub(r"\d+ ms", "some ms", what)) for who, what in lines]


def test_the_core_does_what_the_example_says() -> None:
    done = np.array([FinishReason.NONE], np.uint8)
    events: list[Event] = [
        RequestArrived(
            1.0, 1, 35, BODY["max_tokens"], hashes=bytes.fromhex("cc5fa370") + bytes(28)
        ),
        Predicted(1.001, 1, 2, 2),
        StepDone(1.1, 0, 1, done, 0.068),
        StepDone(1.2, 0, 2, done, 0.015),
    ]
    core = Core(CONFIGURED)
    core.handle(WorkerReady(0.5, 0, 256, 1 << 20, 0.02))
    said: list[Line] = []
    for event in events:
        said.append(("to the Core", shown(event)))
        said += [("from the Core", shown(action)) for action in core.handle(event)]
    of_the_core = [line for line in written() if line[0].endswith("the Core")]
    assert timeless(of_the_core) == timeless([line for line in said if "WakeAt" not in line[1]]), (
        REFRESH
    )


@pytest.mark.soak
def test_a_real_daemon_does_what_the_example_says() -> None:
    # A prediction comes when it is ready, at any line.
    assert sorted(timeless(recorded())) == sorted(timeless(written())), REFRESH
