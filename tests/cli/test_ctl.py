"""`llmd ctl` against a real control socket."""

import asyncio
import json
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from daemon.cli.ctl import policies, reloaded
from daemon.cli.instance_orders import flipped
from daemon.cli.main import main
from daemon.cli.status import as_json, as_text
from daemon.control.server import ControlServer
from daemon.protocol.control import (
    Counters,
    Flipped,
    FlipStatus,
    InstanceStatus,
    PredictorStatus,
    Reloaded,
    Role,
    SequenceStatus,
    Snapshot,
    TransferStatus,
)
from daemon.scheduler.policies import POLICIES, meanings
from tests.control.orders import FLIPPED, Written

CHOSEN: list[str] = []
"""The policies chosen on the served socket, the configured one first."""
NEXT_FLIPS: list[tuple[FlipStatus, ...]] = []
"""What the next snapshots say of flips."""


def snapshot() -> Snapshot:
    """Two instances, one of them loading, and one running sequence."""
    return Snapshot(
        version="1.2.3",
        pid=77,
        uptime_s=3725.0,
        time_s=9.0,
        status="loading weights 40 %",
        ready=False,
        draining=False,
        url="http://127.0.0.1:8000",
        model="small",
        root="/models/small",
        context_len=2048,
        max_len=2048,
        block_size=16,
        instances=(instance("gpu0", "ready", 1.0), instance("gpu1", "loading", 0.4)),
        sequences=(SequenceStatus(128, "decode", "gpu0", 1.5, 10, 12, 2, 64, 1, 0, 0),),
        running=1,
        waiting=2,
        counters=Counters(requests=5, finished=3, rejected=1),
        flips=NEXT_FLIPS.pop(0) if NEXT_FLIPS else (),
    )


def instance(name: str, state: str, fraction: float) -> InstanceStatus:
    return InstanceStatus(
        name=name,
        role="mixed",
        device="cuda:0",
        state=state,
        policy=CHOSEN[-1],
        running=1,
        waiting=2,
        kv_blocks=4,
        kv_free=3,
        kv_held=1,
        kv_cached=1,
        kv_fenced=0,
        kv_block_bytes=1024,
        block_map=np.array([3, 1, 0, 0], dtype=np.uint8),
        steps_in_flight=1,
        steps=10,
        step_s=0.0125,
        batch_rows=1,
        batch_tokens=1,
        load_stage="weights" if state == "loading" else "",
        load_fraction=fraction,
    )


class Orders(Written):
    """Written down; a chosen policy is shown by later snapshots."""

    def choose_policy(self, policy: str, instance: str = "") -> None:
        CHOSEN.append(f"{policy} on {instance}" if instance else policy)

    def drain(self) -> None:
        CHOSEN.append("drained")

    def resume(self) -> None:
        CHOSEN.append("resumed")

    def drain_instance(self, instance: str) -> None:
        CHOSEN.append(f"{instance} drained")

    def resume_instance(self, instance: str) -> None:
        CHOSEN.append(f"{instance} resumed")

    async def flip(self, instance: str, role: str) -> Flipped:
        CHOSEN.append(f"{instance} to {role}")
        number = 3 if instance == "gpu0" else 0
        return msgspec.structs.replace(FLIPPED, number=number, instance=instance)


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """A served control socket, its loop in a thread of its own since the client blocks."""
    CHOSEN[:] = ["sarathi"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "llmd.sock")
        serving, ended = threading.Event(), asyncio.Event()
        loop = asyncio.new_event_loop()

        async def serve() -> None:
            server = ControlServer(path, snapshot, Orders())
            await server.start()
            serving.set()
            await ended.wait()
            await server.close()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
        thread.start()
        assert serving.wait(10)
        yield path
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
        loop.close()


def test_json_has_what_scripts_rely_on(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ctl", "--socket", str(socket_path), "status", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    first, second = status["instances"]
    names = ("name", "role", "device", "running", "waiting", "kv_blocks", "kv_free")
    assert [first[name] for name in names] == ["gpu0", "mixed", "cuda:0", 1, 2, 4, 3]
    assert second["state"] == "loading"
    assert first["block_map"] == [3, 1, 0, 0]
    assert status["sequences"][0]["num_output_tokens"] == 2
    assert status["counters"]["requests"] == 5


def test_text_shows_each_instance(socket_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ctl", "--socket", str(socket_path), "status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "llmd 1.2.3  pid 77  up 1:02:05  loading weights 40 %"
    assert "gpu0" in lines[-2] and "3/4" in lines[-2] and "12.5 ms" in lines[-2]
    assert "gpu1" in lines[-1] and "weights 40%" in lines[-1]


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
        *("gpu0", "cuda:0", "prefill", "ready,", "drained", "1", "2", "3/4"),
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
    assert CHOSEN == ["sarathi", "gpu0 drained", "gpu0 resumed"]


def test_text_tells_what_torch_stands_in_for() -> None:
    told = snapshot()
    slow = msgspec.structs.replace(
        told.instances[0], fallbacks=(("decode", "a fault"), ("graphs", "needs decode"))
    )
    text = as_text(msgspec.structs.replace(told, instances=(slow, *told.instances[1:])))
    assert "gpu0: torch computes decode, graphs: slower than its own kernels\n" in text


def test_text_tells_how_lengths_are_predicted() -> None:
    CHOSEN[:] = ["sarathi"]
    assert "predictor" not in as_text(snapshot())
    status = PredictorStatus("features", True, asks=10, dropped=1, answers=8, took_sum_s=0.004)
    counters = Counters(prediction_count=4, prediction_error_sum=1.0)
    seen = msgspec.structs.replace(snapshot(), predictor=status, counters=counters)
    assert as_text(seen).splitlines()[3] == (
        "predictor features: 8 of 10 answers predicted, 1 dropped, 0.50 ms each; "
        "mean error 25% of 4 finished"
    )
    seen = msgspec.structs.replace(snapshot(), predictor=PredictorStatus("mean"))
    assert as_text(seen).splitlines()[3] == (
        "predictor mean (its process is not up): 0 of 0 answers predicted, 0 dropped"
    )


def test_without_a_name_every_policy_is_listed_and_nothing_chosen(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ctl", "--socket", str(socket_path), "policy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[2:] for line in lines] == meanings()
    assert [line for line in lines if line.startswith("*")] == [f"* {meanings()[1]}"]
    assert CHOSEN == ["sarathi"]


def test_a_name_changes_the_policy(socket_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ctl", "policy", "srtf", "--socket", str(socket_path)]) == 0
    assert CHOSEN == ["sarathi", "srtf"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("*")] == ["srtf"]


def test_a_policy_may_be_for_one_instance(socket_path: Path) -> None:
    assert main(["ctl", "--socket", str(socket_path), "policy", "srtf", "--instance", "gpu1"]) == 0
    assert CHOSEN[-1] == "srtf on gpu1"


def test_policies_name_their_instances_where_several_are_in_use() -> None:
    told = snapshot()
    first, second = told.instances
    instances = tuple(
        msgspec.structs.replace(one, policy=policy)
        for one, policy in ((first, "srtf"), (second, "mlfq"))
    )
    lines = policies(msgspec.structs.replace(told, instances=instances)).splitlines()
    starred = [line for line in lines if line.startswith("*")]
    assert [line.split()[1] for line in starred] == ["srtf", "mlfq"]
    assert starred[0].endswith(" (gpu0)") and starred[1].endswith(" (gpu1)")


@pytest.mark.parametrize("rest", [["--instance", "gpu1"], ["srtf", "--instance", ""]])
def test_an_instance_is_named_together_with_a_policy_or_nothing_is_chosen(
    socket_path: Path, capsys: pytest.CaptureFixture[str], rest: list[str]
) -> None:
    chosen = list(CHOSEN)
    assert main(["ctl", "--socket", str(socket_path), "policy", *rest]) == 2
    assert capsys.readouterr().err == "llmd: --instance takes a name, and goes with a policy's\n"
    assert chosen == CHOSEN


def test_an_unknown_policy_is_one_line_with_the_names_and_status_1(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ctl", "--socket", str(socket_path), "policy", "best"]) == 1
    assert CHOSEN == ["sarathi"]
    streams = capsys.readouterr()
    assert streams.out == ""
    names = ", ".join(sorted(POLICIES))
    assert streams.err == f"llmd: the daemon refused: unknown policy 'best'; known are {names}\n"
    assert main(["ctl", "--socket", str(socket_path), "policy", "sarthi"]) == 1
    assert "'sarthi'; did you mean 'sarathi'?" in capsys.readouterr().err


def test_reload_says_what_changed_and_what_needs_a_restart(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ctl", "reload", "--socket", str(socket_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "read llmd.toml again; changed: daemon.drain_s",
        "needs a restart: server.port",
    ]
    assert reloaded(Reloaded("f", (), ())) == "read f again; changed: nothing"


def test_drain_and_resume_are_ordered_and_say_so(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ctl", "drain", "--socket", str(socket_path)]) == 0
    assert capsys.readouterr().out == "no new requests are taken; 3 answers are under way\n"
    assert main(["ctl", "--socket", str(socket_path), "resume"]) == 0
    assert capsys.readouterr().out.startswith("requests are taken again")
    assert CHOSEN == ["sarathi", "drained", "resumed"]


def test_a_policy_that_this_program_does_not_know_is_listed_too() -> None:
    CHOSEN[:] = ["from-a-newer-daemon"]
    assert policies(snapshot()).splitlines()[-1] == "* from-a-newer-daemon"


def test_the_help_says_what_stays(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["ctl", "policy", "--help"])
    assert exit_.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "token budget of a step stays as configured" in said
    assert all(name in said for name in POLICIES)


@pytest.mark.parametrize(
    "verb",
    [
        *("status", "policy", "reload", "drain", "resume", "drain a", "resume a"),
        *("flip a decode", "migrate 1 a"),
    ],
)
def test_without_a_daemon_one_line_and_status_1(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ctl", "--socket", str(tmp_path / "none.sock"), *verb.split()]) == 1
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("llmd: no llmd daemon answers at ")
    assert streams.err.count("\n") == 1
