"""Fair shares of links: against what a hand can reckon, and against laws of any sharing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.lab.simulator.shared_links import NEVER, SharedLinks

A, B, C = "a out", "b in", "c in"


def drained(links: SharedLinks) -> dict[int, float]:
    """When each copy has passed, if nothing more comes."""
    ends = {}
    while (now := links.next_s) < NEVER:
        passed = links.passed(now)
        assert passed, "whoever says that something will have passed says so truly"
        ends.update(dict.fromkeys(passed, now))
    return ends


def test_one_copy_has_the_narrowest_of_its_links() -> None:
    links = SharedLinks({A: 100.0, B: 50.0})
    links.begin(1.0, 0, (A, B), 200.0)
    assert drained(links) == {0: 5.0}


def test_two_copies_share_and_the_one_that_stays_has_it_all_again() -> None:
    links = SharedLinks({A: 100.0, B: 100.0, C: 100.0})
    links.begin(0.0, 0, (A, B), 100.0)
    links.begin(0.5, 1, (A, C), 100.0)
    # Half of the first has passed alone; its other half takes twice as long; then 1 is alone.
    assert drained(links) == pytest.approx({0: 1.5, 1: 2.0})


def test_what_a_copy_cannot_use_is_left_to_the_others() -> None:
    links = SharedLinks({A: 100.0, B: 20.0, C: 100.0})
    links.begin(0.0, 0, (A, B), 20.0)
    links.begin(0.0, 1, (A, C), 80.0)
    assert drained(links) == pytest.approx({0: 1.0, 1: 1.0})


def test_copies_over_other_links_do_not_meet() -> None:
    links = SharedLinks({A: 10.0, B: 10.0})
    links.begin(0.0, 0, (A,), 10.0)
    links.begin(0.0, 1, (B,), 10.0)
    assert drained(links) == {0: 1.0, 1: 1.0}


def test_a_copy_that_is_broken_off_leaves_its_share() -> None:
    links = SharedLinks({A: 10.0})
    links.begin(0.0, 0, (A,), 100.0)
    links.begin(0.0, 1, (A,), 10.0)
    assert links.stop(1.0, 0) == pytest.approx(95.0)
    assert links.stop(1.0, 0) == 0.0
    assert drained(links) == pytest.approx({1: 1.5})


copies = st.lists(
    st.tuples(
        st.floats(0.0, 3.0),
        st.sets(st.sampled_from([A, B, C]), min_size=1).map(lambda names: tuple(sorted(names))),
        st.floats(0.0, 1e3),
    ),
    min_size=1,
    max_size=20,
)


@given(copies, st.tuples(st.floats(1.0, 100.0), st.floats(1.0, 100.0), st.floats(1.0, 100.0)))
@settings(derandomize=True, deadline=None)
def test_no_link_carries_more_than_it_can_and_none_idles_with_work(
    asked: list[tuple[float, tuple[str, ...], float]], speeds: tuple[float, float, float]
) -> None:
    """Each ends no sooner than alone; together no later than one after the other."""
    bytes_per_s = dict(zip((A, B, C), speeds, strict=True))
    links, now, ends, begun = SharedLinks(bytes_per_s), 0.0, dict[int, float](), list[float]()
    for number, (gap_s, names, size_bytes) in enumerate(asked):
        now += gap_s
        while links.next_s <= now:
            at_s = links.next_s
            ends.update(dict.fromkeys(links.passed(at_s), at_s))
        links.begin(now, number, names, size_bytes)
        begun.append(now)
    ends |= drained(links)
    alone_s = [
        size_bytes / min(bytes_per_s[name] for name in names) for _, names, size_bytes in asked
    ]
    for number, end_s in ends.items():
        assert end_s >= begun[number] + alone_s[number] * (1 - 1e-9)
    for name, speed in bytes_per_s.items():
        mine = [number for number, (_, names, _) in enumerate(asked) if name in names]
        if mine:
            passed = sum(asked[number][2] for number in mine)
            busy_s = max(ends[number] for number in mine) - min(begun[number] for number in mine)
            assert passed <= speed * busy_s * (1 + 1e-9) + 1e-9
    assert max(ends.values()) <= now + sum(alone_s) * (1 + 1e-9) + 1e-9
