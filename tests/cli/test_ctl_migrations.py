"""`llmd ctl` on several instances: flips, sequences that move, and one that is drained."""

import json
from pathlib import Path

import msgspec
import pytest

from daemon.cli.instance_orders import capped, flipped
from daemon.cli.main import main
from daemon.cli.status import as_json, as_text
from daemon.protocol.control import Capped, FlipStatus, Role, Snapshot, TransferStatus
from tests.cli.served import CHOSEN, NEXT_FLIPS, snapshot
from tests.control.orders import FLIPPED


def moving() -> Snapshot:
    """The two instances with a transfer between them, after a flip of each; one is drained."""
    told = snapshot()
    first, second = told.instances
    return msgspec.structs.replace(
        told,
        instances=(
            msgspec.structs.replace(first, drained=True, step_p99_s=0.25, role=Role.PREFILL),
            second,
        ),
        transfers=(
            TransferStatus(9, 128, "gpu0", "gpu1", 12, 3 << 20, 0.010, 0.025, False, False),
            TransferStatus(10, 256, "gpu1", "gpu2", 1, 1 << 20, 0.002, 0.0, True, True),
        ),
        flips=(
            FlipStatus(1, "gpu1", Role.DECODE, Role.MIXED, "load", 75.0, -1.0, -1.0, False),
            FlipStatus(2, "gpu0", Role.MIXED, Role.PREFILL, "operator", 4.0, 0.0125, 1.5, False),
        ),
    )


def test_text_shows_drained_instances_transfers_and_the_newest_flips() -> None:
    CHOSEN[:] = ["sarathi"]
    lines = as_text(moving()).splitlines()
    rows = lines[-10:-1]
    assert rows[0].split() == [
        *("gpu0", "cuda:0", "prefill", "ready,", "drained", "1", "2", "1/4"),
        *("12.5", "ms", "250.0", "ms"),
    ]
    assert rows[1].endswith(" 12.5 ms    -")
    assert rows[2:] == [
        "",
        "TRANSFERS",
        "gpu0 -> gpu1  sequence 128  12 blocks, 3.0 MiB  tail  10.0 ms of about 25.0 ms",
        "gpu1 -> gpu2  sequence 256  1 blocks, 1.0 MiB  ahead, from host memory  2.0 ms",
        "",
        "FLIPS",
        "2  gpu0: mixed -> prefill (operator), 0:00:04 ago: first work after 12.5 ms, clear after "
        "1500.0 ms",
    ]
    assert lines[-1] == (
        "1  gpu1: decode -> mixed (load), 0:01:15 ago: its first work was not sent yet, "
        "not clear yet"
    )
    many = msgspec.structs.replace(moving(), flips=moving().flips * 5)
    assert as_text(many).splitlines()[-1] == "and 2 more"


def test_json_gives_each_instance_the_transfers_that_it_is_an_end_of() -> None:
    CHOSEN[:] = ["sarathi"]
    told = json.loads(as_json(moving()))
    first, second = told["instances"]
    assert (first["role"], first["drained"], first["step_p99_s"]) == ("prefill", True, 0.25)
    assert [one["transfer"] for one in first["transfers"]] == [9]
    assert [one["transfer"] for one in second["transfers"]] == [9, 10]
    assert told["transfers"][1]["target"] == "gpu2"
    assert told["flips"][1]["flip_s"] == 0.0125


def test_a_flip_tells_how_fast_it_was(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["ctl", "--socket", str(socket_path), "flip"]
    assert main([*command, "gpu0", "prefill"]) == 0
    assert capsys.readouterr().out == (
        "gpu0 was mixed and is prefill now: first work after 250.0 ms, not clear yet\n"
    )
    assert main([*command, "gpu0", "prefill", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "number": 3,
        "instance": "gpu0",
        "was": "mixed",
        "role": "prefill",
        "flip_s": 0.25,
        "clear_s": -1.0,
        "idle": False,
    }
    assert main([*command, "gpu1", "prefill", "--wait-clear"]) == 0
    assert capsys.readouterr().out == "gpu1 is prefill already\n"
    assert CHOSEN == ["sarathi", "gpu0 to prefill", "gpu0 to prefill", "gpu1 to prefill"]


@pytest.mark.parametrize(
    ("later", "clear_s"),
    [
        ([FlipStatus(3, "gpu0", Role.MIXED, Role.PREFILL, "", 1.0, 0.25, 0.75, False)], 0.75),
        (
            [
                FlipStatus(3, "gpu0", Role.MIXED, Role.PREFILL, "", 1.0, 0.25, -1.0, False),
                FlipStatus(4, "gpu0", Role.PREFILL, Role.MIXED, "", 0.5, 0.25, -1.0, False),
            ],
            -1.0,
        ),
        ([], -1.0),
    ],
)
def test_a_flip_waits_until_it_is_clear_or_cannot_become_so(
    socket_path: Path,
    capsys: pytest.CaptureFixture[str],
    later: list[FlipStatus],
    clear_s: float,
) -> None:
    open_ = FlipStatus(3, "gpu0", Role.MIXED, Role.PREFILL, "", 1.0, 0.25, -1.0, False)
    NEXT_FLIPS[:] = [(open_,), (open_,), tuple(later)]
    command = ["ctl", "--socket", str(socket_path), "flip", "gpu0", "prefill", "--json"]
    assert main([*command, "--wait-clear"]) == 0
    assert json.loads(capsys.readouterr().out)["clear_s"] == clear_s
    assert not NEXT_FLIPS


def test_a_flip_whose_work_does_not_come_says_so() -> None:
    late = msgspec.structs.replace(FLIPPED, flip_s=-1.0)
    assert flipped(late).endswith(
        "its first work was not sent yet, not clear yet (the daemon waited 60 s for it)"
    )
    idle = msgspec.structs.replace(late, idle=True, clear_s=0.0)
    assert flipped(idle).endswith("now: no work waited for it, clear after 0.0 ms")


def test_a_sequence_is_ordered_elsewhere(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["ctl", "--socket", str(socket_path), "migrate"]
    assert main([*command, "128", "gpu0"]) == 0
    assert capsys.readouterr().out == "sequence 128 moves from gpu1 to gpu0\n"
    assert main([*command, "128", "gpu0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "sequence": 128,
        "source": "gpu1",
        "target": "gpu0",
    }
    assert main([*command, "gpu0", "128"]) == 2
    assert capsys.readouterr().err == "llmd: a sequence is a number, not 'gpu0'\n"


def test_drain_and_resume_may_be_of_one_instance(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["ctl", "--socket", str(socket_path)]
    assert main([*command, "drain", "gpu0"]) == 0
    assert capsys.readouterr().out == "gpu0 takes nothing new; 3 sequences are to move away\n"
    assert main([*command, "resume", "gpu0"]) == 0
    assert capsys.readouterr().out == "gpu0 is used again\n"
    assert main([*command, "resume", "gpu0"]) == 0
    assert capsys.readouterr().out == "gpu0 was not drained: it is used\n"
    assert CHOSEN == ["sarathi", "gpu0 drained", "gpu0 resumed", "gpu0 resumed"]


def test_a_cap_says_what_came_of_it(socket_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["ctl", "--socket", str(socket_path), "cap", "gpu0"]
    assert main([*command, "60"]) == 0
    assert capsys.readouterr().out == (
        "gpu0: 100 W instead of 60 W: its card can have 100 to 350 W; the limit in force is 150 W, "
        "since others want more\n"
    )
    assert main([*command, "auto", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "instance": "gpu0",
        "asked_watts": 60.0,
        "wish_watts": 100.0,
        "cap_watts": 150.0,
        "min_watts": 100.0,
        "max_watts": 350.0,
    }
    assert main([*command, "most"]) == 2
    assert capsys.readouterr().err == "llmd: a cap is a number of watts or auto, not 'most'\n"
    for below in ("-5", "-inf", "-1e5", "-nan"):
        assert main([*command, below]) == 0, "a number, which is the daemon's to refuse"
    assert capped(Capped("a", None, 300.0, 300.0, 100.0, 350.0)) == "a: 300 W, as its role asks"
    assert capped(Capped("a", 250.0, 250.0, 250.0, 100.0, 350.0)) == "a: 250 W"
