"""The observed load: sums, when it is another one, and its state as plain values."""

import msgspec
import numpy as np
import pytest

from daemon.roles.window import BUCKET_S, LoadWindow, WindowState


def fed(
    window: LoadWindow, begin_s: float, end_s: float, every_s: float, prompt: int = 100
) -> list[float]:
    """Requests at even times; when the load was seen to be another one."""
    changes, now = [], begin_s
    while now < end_s:
        if window.since_s >= 0.0 and window.close(now):
            changes.append(now)
        window.arrived(now, prompt, 1)
        window.ended(now, max(begin_s, now - 1.0), prompt, 50)
        now += every_s
    return changes


def test_rates_and_means() -> None:
    window = LoadWindow()
    assert fed(window, 0.0, 60.0, 0.25) == []
    window.close(60.0)
    load = window.load([], 0.5)
    assert load is not None
    assert load.rate_rps == pytest.approx(4.0)
    assert load.prompt_tokens == 100 and load.answer_tokens == pytest.approx(50)
    assert load.computed_prompts[0] == 50
    assert window.span_s == 60.0 and window.num_requests == 240


def test_answers_that_have_not_ended_count_for_the_mean() -> None:
    """Half end with 50 tokens; the others go on, as if memoryless at 200 tokens for each end."""
    window = LoadWindow()
    window.arrived(0.0, 10, 2)
    window.ended(2.0, 0.0, 10, 50)
    window.close(5.0)
    load = window.load([(10, 150)], 0.0)
    assert load is not None and load.answer_tokens == 50 / 2 + (50 + 200) / 2
    assert load.answers_per_request == 2


@pytest.mark.parametrize(("every_s", "prompt"), [(0.5, 100), (0.1, 100), (0.25, 200)])
def test_another_rate_or_length_is_another_load(every_s: float, prompt: int) -> None:
    window = LoadWindow()
    assert fed(window, 0.0, 120.0, 0.25) == []
    (changed,) = fed(window, 120.0, 240.0, every_s, prompt)
    assert 120.0 < changed <= 155.0
    assert window.since_s == pytest.approx(changed, abs=BUCKET_S)
    load = window.load([], 0.0)
    assert load is not None and load.rate_rps == pytest.approx(1.0 / every_s, rel=0.05)


def test_a_long_rest_takes_no_time_to_close() -> None:
    window = LoadWindow()
    fed(window, 0.0, 60.0, 0.25)
    window.close(1e7)
    assert window.edge_s == pytest.approx(1e7, abs=26 * BUCKET_S)
    assert fed(window, 1e7, 1e7 + 120.0, 0.25) != []


def test_its_state_is_all_that_it_knows() -> None:
    window = LoadWindow()
    fed(window, 0.0, 130.0, 0.3)
    written = msgspec.msgpack.encode(window.state())
    again = LoadWindow.restored(msgspec.msgpack.decode(written, type=WindowState))
    for each in (window, again):
        fed(each, 130.0, 200.0, 0.1)
    assert again.state() == window.state()


def test_lengths_that_vary_by_chance_are_no_change() -> None:
    """Four hours at one request a second: half a minute has some thirty, few of them long."""
    chance, window, changes = np.random.default_rng(1), LoadWindow(), 0
    lengths = (1.0 + chance.exponential(60.0, (2, 14_400))).astype(int)
    for now, (prompt, answer) in enumerate(lengths.T.tolist()):
        changes += window.since_s >= 0.0 and window.close(float(now))
        window.arrived(float(now), prompt, 1)
        window.ended(float(now), max(0.0, now - 5.0), prompt, answer)
    assert changes == 0
