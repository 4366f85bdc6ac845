"""Stories in words and as stretches of time."""

from collections.abc import Sequence

import pytest

from daemon.protocol.control import Cause, FinishReason, Mark, Story, What
from tests.tui import scenario
from tui.screens.sequence import Pace
from tui.story import ranges, sentence, stretches, strip_cells, totals


def told(marks: Sequence[tuple[float, str]], now: float) -> Story:
    return Story(7, now, tuple(Mark(at_s, what, 0, -1) for at_s, what in marks))


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        (Mark(0, What.HELD_BACK, 0, 9), "held back until 9 has computed the prompt of both"),
        (Mark(0, What.QUEUED, 1, -1), "queued on gpu1"),
        (Mark(0, What.QUEUED, 5, -1), "queued on 5"),
        (Mark(0, What.MOVED, 1, -1), "moved from gpu1, where it waited"),
        (Mark(0, What.SENT_AHEAD, 1, -1), "1 block of its KV sent ahead"),
        (Mark(0, What.SENT_AHEAD, 9, 1), "9 blocks of its KV sent ahead to gpu1"),
        (Mark(0, What.LEFT, 144, 1), "leaves for gpu1, takes the KV of 144 tokens along"),
        (Mark(0, What.LEFT, 0, 7), "leaves for 7, without its KV"),
        (Mark(0, What.LANDED, 144, -1), "its KV of 144 tokens has landed"),
        (Mark(0, What.ADMITTED, 0, -1), "runs"),
        (Mark(0, What.ADMITTED, 1, -1), "runs, 1 token from the prefix cache"),
        (Mark(0, What.CHUNK, 1, -1), "computes 1 token"),
        (Mark(0, What.SHARED, 30, 9), "runs, 30 tokens shared with 9"),
        (Mark(0, What.PROMOTED, 0, -1), "promoted to level 0"),
        (Mark(0, What.OUT_OF_BLOCKS, 0, 7), "preempted: no block for its next token"),
        (Mark(0, What.WORKER_LOST, 0, -1), "preempted: its worker was lost"),
        (Mark(0, What.RESUMED, 1240, Cause.SWAPPED), "goes on after a pause of 1.24 s (swapped)"),
        (Mark(0, What.RESUMED, 30, 99), "goes on after a pause of 30.0 ms (cause 99)"),
        (Mark(0, What.FINISHED, 12, FinishReason.ABORT), "finished with 12 tokens (abort)"),
        (Mark(0, What.FINISHED, 12, 99), "finished with 12 tokens (reason 99)"),
        (Mark(0, What.FOLLOWED, 40, 1), "runs again, KV of 40 tokens comes from gpu1"),
        (Mark(0, "of a newer daemon", 1, 2), "of a newer daemon"),
    ],
)
def test_a_mark_in_words(mark: Mark, words: str) -> None:
    assert sentence(mark, Story(7, 1.0), ["gpu0", "gpu1"]) == words


def test_every_mark_that_a_daemon_writes_has_words() -> None:
    names = [value for name, value in vars(What).items() if name.isupper()]
    assert len(names) == 22
    for name in names:
        words = sentence(Mark(0, name, 3, 4), Story(7, 1.0), ["gpu0"] * 4)
        assert words and (words != name or name == What.FIRST)


def test_a_life_in_stretches() -> None:
    story = scenario.story(1002, 119.0)
    found = [(one.kind, round(one.end_s - one.start_s, 3)) for one in stretches(story)]
    assert found == [
        ("waiting", 1.4), ("prefill", 1.4), ("decode", 3.4), ("preempted", 3.3), ("moving", 0.1),
        ("decode", 2.4), ("preempted", 3.0), ("decode", 7.0),
    ]  # fmt: skip
    assert sum(totals(stretches(story)).values()) == pytest.approx(22)
    cells = strip_cells(stretches(story), 22)
    assert cells[:4] == ["waiting", "prefill", "prefill", "decode"]
    assert len(cells) == 22 and cells[-1] == "decode"


def test_a_short_life_and_an_ended_one() -> None:
    assert [one.kind for one in stretches(told([(1.0, What.ARRIVED)], 1.0))] == ["waiting"]
    ended = told([(1.0, What.ARRIVED), (2.0, What.ADMITTED), (2.0, What.CHUNK), (3.0, What.FIRST),
                  (4.0, What.FINISHED)], 9.0)  # fmt: skip
    assert totals(stretches(ended)) == {"waiting": 1.0, "prefill": 1.0, "decode": 1.0}
    again = told([(0.0, What.ARRIVED), (1.0, What.ADMITTED), (1.0, What.CHUNK), (2.0, What.FIRST),
                  (3.0, What.GAVE_WAY), (4.0, What.ADMITTED), (4.0, What.CHUNK), (5.0, What.CHUNK)],
                 7.0)  # fmt: skip
    assert [one.kind for one in stretches(again)] == [
        "waiting", "prefill", "decode", "preempted", "prefill", "decode",
    ]  # fmt: skip
    assert strip_cells([], 10) == []


def test_a_move_is_a_stretch_until_the_kv_is_there_or_is_computed_again() -> None:
    begun = [
        *((0.0, What.ARRIVED), (1.0, What.ADMITTED), (1.0, What.CHUNK), (2.0, What.FIRST)),
        *((2.5, What.SENT_AHEAD), (3.0, What.LEFT), (3.0, What.QUEUED), (3.2, What.ADMITTED)),
    ]
    landed = told([*begun, (3.5, What.LANDED)], 5.0)
    assert [(one.kind, one.start_s) for one in stretches(landed)] == [
        ("waiting", 0.0), ("prefill", 1.0), ("decode", 2.0), ("moving", 3.0), ("decode", 3.5),
    ]  # fmt: skip
    broken = told([*begun, (3.6, What.CHUNK), (4.0, What.RESUMED)], 5.0)
    assert [(one.kind, one.start_s) for one in stretches(broken)][3:] == [
        ("moving", 3.0), ("decode", 3.6),
    ]  # fmt: skip
    lost = told([*begun, (3.6, What.WORKER_LOST), (4.0, What.ADMITTED)], 5.0)
    assert [(one.kind, one.start_s) for one in stretches(lost)][3:] == [
        ("moving", 3.0), ("preempted", 3.6), ("decode", 4.0),
    ]  # fmt: skip


def test_neighbouring_blocks_are_joined() -> None:
    assert ranges([4, 5, 6, 9, 2, 3]) == "4-6, 9, 2-3"
    assert ranges([]) == ""


def test_the_pace_of_an_answer() -> None:
    pace = Pace()
    assert pace.now() is None
    for step in range(9):
        pace.add(10 + step / 2, 5 * step)
        pace.add(10 + step / 2 + 0.1, 5 * step)
    assert pace.values == [10.0] * 8
    assert pace.now() == 10.0
