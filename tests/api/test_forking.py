"""Forks answer, are late, die, say too much; the process that has them goes on."""

import os
import resource
import signal
import time
from collections.abc import Iterator

import pytest

from daemon.api.sandbox.forking import Forks, QuestionLimits, QuestionOutcome

LIMITS = QuestionLimits(
    cpu_s=0.1, waiting_s=0.3, memory_bytes=64 << 20, answer_bytes=1 << 20, num_answers=3
)


def answer(question: bytes) -> bytes:
    """Does what it is told."""
    if question == b"spin":
        while True:
            pass
    if question == b"sleep":
        time.sleep(60)
    if question == b"fill":
        return b"x" * (1 << 30)
    if question == b"break":
        os.abort()
    if question == b"talk":
        return b"x" * (2 << 20)
    if question == b"pid":
        return str(os.getpid()).encode()
    return question


@pytest.fixture
def forks() -> Iterator[Forks]:
    made = Forks(answer, LIMITS)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("question", "outcome"),
    [
        (b"spin", QuestionOutcome.LATE),
        (b"sleep", QuestionOutcome.LATE),
        (b"fill", QuestionOutcome.DIED),
        (b"break", QuestionOutcome.DIED),
        (b"talk", QuestionOutcome.TOO_LONG),
    ],
)
def test_what_becomes_of_a_question(
    forks: Forks, question: bytes, outcome: QuestionOutcome
) -> None:
    assert forks.ask(b"before") == (QuestionOutcome.ANSWERED, b"before")
    assert forks.ask(question) == (outcome, b"")
    assert forks.ask(b"x" * 500_000) == (QuestionOutcome.ANSWERED, b"x" * 500_000)


def test_a_fork_answers_so_often_and_no_more(forks: Forks) -> None:
    pids = [forks.ask(b"pid")[1] for _ in range(7)]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]


def test_a_fork_that_was_killed_while_it_waited_is_replaced(forks: Forks) -> None:
    first = int(forks.ask(b"pid")[1])
    os.kill(first, signal.SIGKILL)
    while not forks._idle[0].gone:
        time.sleep(0.01)
    outcome, second = forks.ask(b"pid")
    assert outcome == QuestionOutcome.ANSWERED
    assert int(second) != first


def test_descriptors_may_have_any_number(forks: Forks) -> None:
    # A child of a process with a thousand connections.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard), hard))
    many: list[int] = []
    try:
        while not many or many[-1] < 1024:
            many.append(os.open("/dev/null", os.O_RDONLY))
        assert forks.ask(b"here") == (QuestionOutcome.ANSWERED, b"here")
        assert not forks._idle[0].gone
    finally:
        for descriptor in many:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_longer_question_may_take_longer() -> None:
    assert LIMITS.cpu_of(b"x" * 100) == LIMITS.cpu_s
    assert LIMITS._replace(cpu_s_per_byte=0.01).cpu_of(b"x" * 100) == pytest.approx(1.1)
    assert LIMITS._replace(cpu_s_per_byte=0.01, most_cpu_s=0.5).cpu_of(b"x" * 100) == 0.5
