"""`llmd-top -1`: the frame, and the program around it."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from daemon.control.server import ControlServer
from daemon.protocol.control import RankStatus, RolesStatus, StageStatus
from tests.tui import scenario
from tui.app import main
from tui.moves import roles_line
from tui.plain import frame
from tui.recording import RecordingWriter

GOLDEN = Path(__file__).parent / "golden_frame.txt"


def test_the_frame_is_the_golden_one() -> None:
    assert frame(scenario.snapshot(20, num_running=6, num_waiting=2)) + "\n" == GOLDEN.read_text()


def test_levels_swapping_and_predictions_are_in_the_frame() -> None:
    text = frame(scenario.swapping(20, num_running=6))
    assert "  predictor   mean, up; 60 asks, 2 dropped, 200 us each\n" in text
    assert "  preempted   40 times; 30 swapped out, 28 back in\n" in text
    assert "  paused      40 times, 2.50 s in the mean; 30 swapped, 10 recomputed\n" in text
    assert "  predictions 50 finished with one, off by 20 % in the median, 82 % within a " in text
    lines = [line.split() for line in text.splitlines()]
    header = next(line for line in lines if "POLICY" in line)
    row = next(line for line in lines if "proactive" in line)
    assert header[:3] + header[-6:] == [
        "INSTANCE", "POLICY", "SWAP", "OUT", "IN", "LINK", "SEQUENCES", "BY", "LEVEL",
    ]  # fmt: skip
    assert row == [
        "gpu0", "mlfq", "proactive", "[####......]", "33", "%", "340/1024",
        "84.4", "MiB", "56.2", "MiB", "0", "%", "0:14", "1:8", "3:3", "6:1",
    ]  # fmt: skip
    second = next(line for line in lines if line[:1] == ["1002"])
    assert second[-8:] == ["106/256", "100!", "2", "both", "96", "12", "1", "0"]


def test_drafts_are_in_the_frame() -> None:
    busy = scenario.snapshot(20)
    assert "  drafts " not in frame(busy)
    text = frame(scenario.drafting(busy))
    assert "  drafts      300 of 400 accepted (75 %), 3.5 tokens a step\n" in text


def test_gpus_that_can_be_asked_are_in_the_frame() -> None:
    text = frame(scenario.with_gpus(scenario.snapshot(20)))
    card = "NVIDIA Fake 9000, 21.0 GiB of 24.0 GiB, 72 of 250 W, 61 °C, 37 % busy"
    assert f"  gpu         gpu0, {card}\n" in text
    assert f"  gpu         gpu1, {card}\n" in text


def test_kernels_that_torch_stands_in_for_are_in_the_frame() -> None:
    one = scenario.snapshot(20)
    slow = msgspec.structs.replace(one.instances[0], fallbacks=(("decode", "not done\nin 60 s"),))
    text = frame(msgspec.structs.replace(one, instances=(slow, *one.instances[1:])))
    assert "  kernels     gpu0: torch computes decode: not done" in text
    assert sum("torch computes" in line for line in text.splitlines()) == 1


def test_ranks_are_told_below_their_instance() -> None:
    one = scenario.snapshot(20)
    ranks = (RankStatus(70, "ready", 300 << 20), RankStatus(71, "loading", 280 << 20))
    first = msgspec.structs.replace(one.instances[0], ranks=ranks)
    lines = frame(msgspec.structs.replace(one, instances=(first, *one.instances[1:]))).splitlines()
    place = next(number for number, line in enumerate(lines) if "pid 70 " in line)
    assert lines[place - 1].split()[0] == first.name
    assert lines[place].split() == ["rank", "0", "pid", "70", "ready", "300", "MiB"]
    assert lines[place + 1].split() == ["rank", "1", "pid", "71", "loading", "280", "MiB"]


def test_the_bubbles_of_stages_are_told_beside_their_ranks() -> None:
    one = scenario.snapshot(20)
    ranks = (RankStatus(70, "ready", 300 << 20), RankStatus(71, "ready", 280 << 20))
    stages = StageStatus(9.0, (8.0, 7.0), 2.0, (1.5, 1.9))
    first = msgspec.structs.replace(one.instances[0], ranks=ranks, stages=stages)
    lines = frame(msgspec.structs.replace(one, instances=(first, *one.instances[1:]))).splitlines()
    last_stage, first_stage = (
        next(line for line in lines if f"pid {rank.pid} " in line) for rank in ranks
    )
    assert last_stage.split()[-3:] == ["5", "%", "bubble"]
    assert first_stage.split()[-3:] == ["25", "%", "bubble"]
    assert StageStatus(0.0, (), 0.0, (0.0, 0.0)).bubbles == (0.0, 0.0)


def test_the_node_is_told_below_its_instance() -> None:
    one = scenario.snapshot(20)
    first = msgspec.structs.replace(one.instances[0], node="second")
    lines = frame(msgspec.structs.replace(one, instances=(first, *one.instances[1:]))).splitlines()
    place = next(number for number, line in enumerate(lines) if "on node" in line)
    assert lines[place - 1].split()[0] == first.name
    assert lines[place].split() == ["on", "node", "second"]


def test_loading_shows_its_progress() -> None:
    text = frame(scenario.starting(0.4))
    assert "loading weights 40 %" in text
    assert "ID" not in text.split()


def test_a_long_list_is_cut_and_counted() -> None:
    text = frame(scenario.snapshot(20, num_running=600, num_waiting=30))
    assert text.endswith("  and 590 more")
    assert len(text.splitlines()) < 70


async def llmd_top(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys; from tui.app import main; sys.exit(main())", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_one_frame_and_exit(path: Path) -> None:
    server = ControlServer(path, lambda: scenario.snapshot(20, num_running=6, num_waiting=2))
    await server.start()
    code, out, err = await llmd_top("-1", "--socket", str(path))
    await server.close()
    assert (code, out, err) == (0, GOLDEN.read_text(), "")


def test_no_daemon_is_exit_1_with_a_reason(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-1", "--socket", str(path)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"llmd-top: no llmd daemon answers at {path}: no such socket\n"


def test_a_recordings_last_frame(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "seen.rec"
    recorder = RecordingWriter(path)
    for step in (19, 20):
        recorder.write(step, scenario.snapshot(step, num_running=6, num_waiting=2))
    recorder.write(21, scenario.story(1002, 110.0))
    recorder.close()
    assert main(["-1", "--replay", str(path)]) == 0
    assert capsys.readouterr().out == GOLDEN.read_text()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert main(["-1", "--replay", str(path)]) == 1
    assert f"llmd-top: {path} is damaged at byte" in capsys.readouterr().err


def test_what_moves_is_told_in_plain_characters() -> None:
    lines = frame(scenario.moving(10)).splitlines()
    start = lines.index("  4 in flight, 98.4 MiB ; 40 handed over, 1 failed")
    assert lines[start + 1].split() == [
        *("gpu0", "->", "gpu1", "1000", "############" + "." * 28, "30", "%"),
        *("5.62", "MiB", "ahead"),
    ]
    assert (
        lines[start + 5]
        == "  flip gpu0     mixed -> prefill operator: 250 ms, clearing ; 1.5 s ago"
    )
    assert any("ready, drained" in line for line in lines)
    assert "in flight," not in frame(scenario.snapshot(10))


def test_what_the_watcher_of_roles_chose_is_told() -> None:
    roles = RolesStatus("auto", "1:1", (), "better than mixed by 0.25")
    told = frame(msgspec.structs.replace(scenario.snapshot(10), roles=roles))
    assert "  roles       1:1: better than mixed by 0.25" in told.splitlines()
    assert roles_line(roles).plain == "roles 1:1 · better than mixed by 0.25"
    assert "roles " not in frame(scenario.snapshot(10))
    alone = RolesStatus("auto", "mixed", (), "")
    told = frame(msgspec.structs.replace(scenario.snapshot(10), roles=alone))
    assert "  roles       mixed" in told.splitlines()
    assert roles_line(alone).plain == "roles mixed"
