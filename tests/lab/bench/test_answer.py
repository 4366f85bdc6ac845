"""From events to times, counts and an outcome."""

import numpy as np

from daemon.client.sse import Choice, Event, Usage
from daemon.lab.bench.answer import ClientAnswer
from daemon.lab.bench.choices import sink_of
from daemon.lab.bench.load import SentLoad
from daemon.lab.bench.log import run_log
from daemon.lab.report.records import Outcome
from tests.lab.bench.test_prompts import workload


def taken(events: list[tuple[float, Event]], closed: bool = True) -> ClientAnswer:
    answer = ClientAnswer()
    for now_s, event in events:
        answer.take(event, now_s)
    if closed:
        answer.close()
    answer.ended_s = events[-1][0] if events else 0.0
    return answer


def text(words: str, reason: str | None = None) -> Event:
    return Event(choices=[Choice(text=words, finish_reason=reason)])


def counts(num_tokens: int) -> Event:
    return Event(choices=[], usage=Usage(prompt_tokens=9, completion_tokens=num_tokens))


def test_an_event_for_each_token() -> None:
    answer = taken([(1, text("a")), (2, text("b")), (2.5, text("", "length")), (3, counts(2))])
    assert answer.outcome is Outcome.FINISHED
    assert list(answer.token_s) == [1, 2]  # the reason came later and is no token
    assert (answer.num_tokens, answer.prompt_tokens) == (2, 9)


def test_a_last_token_without_text_came_with_the_reason() -> None:
    answer = taken([(1, text("a")), (2, text("b")), (2.5, text("", "length")), (3, counts(3))])
    assert list(answer.token_s) == [1, 2, 2.5]


def test_an_answer_without_any_text() -> None:
    answer = taken([(2, text("", "stop")), (3, counts(1))])
    assert answer.outcome is Outcome.FINISHED and list(answer.token_s) == [2]


def test_the_reason_may_come_with_the_last_text() -> None:
    answer = taken([(1, text("a")), (2, text("b", "stop")), (3, counts(2))])
    assert list(answer.token_s) == [1, 2]


def test_several_tokens_in_an_event_are_the_servers_count() -> None:
    answer = taken([(1, text("abc")), (2, text("de", "length")), (2, counts(5))])
    assert answer.num_tokens == 5 and list(answer.token_s) == [1, 2]


def test_without_counts_events_are_tokens() -> None:
    assert taken([(1, text("a")), (2, text("b", "stop"))]).num_tokens == 2


def test_ends_that_are_failures() -> None:
    assert "without a finish reason" in taken([(1, text("a"))]).error
    assert taken([]).outcome is Outcome.FAILED
    aborted = taken([(1, text("a", "abort"))])
    assert aborted.outcome is Outcome.FAILED and "abort" in aborted.error
    broken = taken([(1, text("a")), (2, Event(error={"message": "lost"}))])
    assert broken.outcome is Outcome.FAILED and broken.error == "in mid-stream: lost"


def test_the_log_of_a_run() -> None:
    answers = [
        taken([(11, text("a")), (11.5, text("b")), (12.5, text("c", "length")), (13, counts(3))]),
        taken([(12, text("a"))], closed=False),  # still running
        ClientAnswer(ended_s=11.0),
        taken([(14, text("a", "stop")), (14, counts(1))]),
    ]
    answers[2].fail("HTTP 429: full", Outcome.REJECTED)
    made = workload([9, 9, 5, 9, 9])
    made.arrival_s[:] = [0.5, 0.6, 0.7, 3.0, 9.0]
    made.output_tokens[:] = 3
    sent = SentLoad(start_s=10.0, answers=answers, end_s=15.0, interrupted=True)

    run = run_log(sent, made, fixed_length=True)
    log = run.requests
    assert len(log) == 4  # the fifth never left
    assert log.arrival_s.tolist() == [0.5, 0.6, 0.7, 3.0]
    assert log.first_s.tolist()[:2] == [1, 2] and np.isnan(log.first_s[2])
    assert log.last_s[0] == 2.5
    assert log.output_tokens.tolist() == [3, 1, 0, 1]
    assert log.prompt_tokens.tolist() == [9, 9, 5, 9]
    assert log.asked_tokens.tolist() == [3, 3, 3, 3]
    assert log.gap_s.tolist() == [0.5, 1.0] and log.gap_request.tolist() == [0, 0]
    outcomes = [Outcome.FINISHED, Outcome.UNFINISHED, Outcome.REJECTED, Outcome.FINISHED]
    assert log.outcome.tolist() == outcomes
    assert (run.virtual_s, run.wall_s) == (3.5, 5.0)

    own = run_log(sent, made, fixed_length=False).requests
    assert own.asked_tokens.tolist() == [3, 3, 3, 1]  # an answer that ended early is whole


def test_a_run_that_ended_before_anything_left() -> None:
    run = run_log(SentLoad(start_s=1.0, end_s=2.0), workload([3]), fixed_length=True)
    assert (len(run.requests), run.virtual_s, run.requests.gap_s.size) == (0, 0.0, 0)


def test_choices_of_other_lengths_share_the_servers_count_by_their_events() -> None:
    short, long = answers = [ClientAnswer(), ClientAnswer()]
    sink = sink_of(answers, equal=False)
    for now_s, index in ((1, 0), (2, 1), (3, 1), (4, 1)):  # two tokens in each event
        end = "stop" if now_s in (1, 4) else None
        sink.take(Event(choices=[Choice(text="ab", finish_reason=end, index=index)]), now_s)
    sink.take(counts(8), 5)
    sink.close()
    assert (short.num_tokens, long.num_tokens) == (2, 6)
    assert (list(short.token_s), list(long.token_s)) == ([1], [2, 3, 4])
    assert sink_of([short], equal=False) is short
