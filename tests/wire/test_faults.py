"""What LLMD_FAULT may say, and that equal seeds strike alike."""

import pytest

from daemon.wire.faults import SITES, TEST_MODE, VARIABLE, Fault, FaultError, faults

ON = {TEST_MODE: "1"}


def test_nothing_is_built_where_nothing_is_asked() -> None:
    assert faults(environment={}) == {}
    assert faults(environment=ON) == {}
    assert faults("api.", environment={**ON, VARIABLE: "worker.hang:1:0"}) == {}


def test_sites_are_read_with_their_numbers() -> None:
    found = faults("worker.", environment={**ON, VARIABLE: "worker.slow:0.25:30, api.crash:1:0"})
    assert list(found) == ["worker.slow"]
    assert (found["worker.slow"].probability, found["worker.slow"].seed) == (0.25, 30)
    assert faults(environment={**ON, VARIABLE: f"{','.join(f'{s}:0:1' for s in SITES)}"})


def test_outside_test_mode_it_is_refused() -> None:
    for mode in ({}, {TEST_MODE: "0"}, {TEST_MODE: ""}):
        with pytest.raises(FaultError, match="LLMD_TEST_MODE=1 is not"):
            faults(environment={**mode, VARIABLE: "worker.hang:1:0"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("worker.sulks:1:0", "no site 'worker.sulks'; there are worker.crash_before"),
        ("worker.hang", "'worker.hang' is not site:probability:seed"),
        ("worker.hang:often:0", "'worker.hang:often:0' is not site:probability:seed"),
        ("worker.hang:1:0:0", "is not site:probability:seed"),
        ("worker.hang:2:0", "a probability is between 0 and 1"),
        ("worker.hang:nan:0", "a probability is between 0 and 1"),
        ("worker.hang:1:0,", "no site ''"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, says: str) -> None:
    with pytest.raises(FaultError) as refused:
        faults(environment={**ON, VARIABLE: text})
    assert says in str(refused.value)


def test_equal_seeds_strike_alike_and_lives_differ() -> None:
    def visits(fault: Fault) -> list[bool]:
        return [fault.strikes() for _ in range(200)]

    assert visits(Fault(0.3, 5)) == visits(Fault(0.3, 5))
    assert visits(Fault(0.3, 5)) != visits(Fault(0.3, 5, life=1))
    assert visits(Fault(0.3, 5)) != visits(Fault(0.3, 6))
    assert 30 < sum(visits(Fault(0.3, 5))) < 90
    assert not any(visits(Fault(0.0, 5))) and all(visits(Fault(1.0, 5)))
