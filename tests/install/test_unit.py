"""The unit is sound, hardened, and says what the daemon does."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from daemon.config.schema import DaemonConfig
from daemon.powerd.client import ANSWER_S
from daemon.powerd.frames import SERVICE_SOCKET
from daemon.runtime.serving import STUCK_S
from tests.house.source import ROOT

UNIT = ROOT / "systemd" / "llmd.service"
HELPER = ROOT / "systemd" / "llmd-powerd.service"
MOST_EXPOSED = {UNIT: 1.5, HELPER: 1.0}

needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def values(name: str, unit: Path = UNIT) -> list[str]:
    """What a setting is set to, in order."""
    return re.findall(rf"^{name}=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)


def analyze(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = ["systemd-analyze", "--no-pager", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@needs_analyze
@pytest.mark.parametrize("unit", MOST_EXPOSED, ids=lambda unit: unit.stem)
def test_it_is_hardly_exposed(unit: Path) -> None:
    done = analyze("security", "--offline=true", str(unit))
    if "nrecognized option" in done.stderr or "Unknown" in done.stderr:
        pytest.skip("this systemd-analyze rates running services only")
    score = re.search(rf"Overall exposure level for {unit.name}: ([\d.]+)", done.stdout)
    assert score, done.stdout + done.stderr
    assert float(score[1]) <= MOST_EXPOSED[unit]


@needs_analyze
@pytest.mark.parametrize("source", MOST_EXPOSED, ids=lambda unit: unit.stem)
def test_systemd_understands_every_line(tmp_path: Path, source: Path) -> None:
    """Its programs are looked for, so they are put there."""
    text = source.read_text(encoding="utf-8").replace("/opt/llmd", str(tmp_path))
    program = tmp_path / "venv/bin" / source.stem
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / source.name
    unit.write_text(text, encoding="utf-8")
    done = analyze("verify", "--man=no", str(unit))
    mine = [line for line in done.stderr.splitlines() if "llmd" in line]
    assert (done.returncode, mine) == (0, [])


def test_what_compiles_and_chooses_cores_may_do_so() -> None:
    assert values("MemoryDenyWriteExecute") == []
    assert not any("@resources" in one for one in values("SystemCallFilter"))


def test_gpus_can_be_opened_and_no_other_device() -> None:
    assert values("PrivateDevices") == []
    assert (values("DevicePolicy"), values("DeviceAllow")) == (["closed"], ["char-nvidia* rw"])


def test_its_times_are_the_daemons() -> None:
    assert int(values("TimeoutStopSec")[0]) > DaemonConfig().drain_s
    assert 0 < int(values("WatchdogSec")[0]) <= STUCK_S, "what is stuck is then not fed for long"


def test_reloading_waits_for_the_answer_of_the_socket_that_the_daemon_has() -> None:
    (command,) = values("ExecReload")
    assert command.endswith(
        f"llmd ctl reload --socket /run/{values('RuntimeDirectory')[0]}/llmd.sock"
    )


def test_the_helper_has_one_right_and_the_service_none() -> None:
    for name in ("CapabilityBoundingSet", "AmbientCapabilities"):
        assert (values(name), values(name, HELPER)) == ([""], ["CAP_SYS_ADMIN"])
    for name, value in (
        ("NoNewPrivileges", "true"),
        ("RestrictAddressFamilies", "AF_UNIX"),
        ("IPAddressDeny", "any"),
        ("PrivateNetwork", "true"),
        ("DevicePolicy", "closed"),
        ("DeviceAllow", "char-nvidia* rw"),
        ("RestrictNamespaces", "true"),
        ("Restart", "on-failure"),
    ):
        assert values(name, HELPER) == [value]
    assert values("IPAddressAllow", HELPER) == [], "it speaks to nobody beyond its socket"
    assert values("User", HELPER) == ["llmd-powerd"], "neither root nor the service"
    assert "u llmd-powerd " in (ROOT / "systemd/llmd.sysusers.conf").read_text(encoding="utf-8")


def test_what_the_helper_leaves_is_restored_however_it_ends() -> None:
    """Also where it is stopped while systemd waits to start it again."""
    (start,), (after,) = values("ExecStart", HELPER), values("ExecStopPost", HELPER)
    program, state = start.split(" --socket ")[0], start[start.index(" --state ") :]
    assert after == f"{program}{state} --restore"
    assert values("StartLimitIntervalSec", HELPER) == ["0"], "it is always started again"


def test_a_helper_that_hangs_is_started_again() -> None:
    """It says itself that it listens, and that its loop turns."""
    assert (values("Type", HELPER), values("NotifyAccess", HELPER)) == (["notify"], ["main"])
    assert ANSWER_S < int(values("WatchdogSec", HELPER)[0]) <= 60, "a driver may take its time"


def test_the_service_reaches_the_helpers_socket_by_its_group() -> None:
    """The folder and the socket are the group's, and a path is seen from every network."""
    assert values("Group", HELPER) == values("Group") == ["llmd"]
    assert values("RuntimeDirectoryMode", HELPER) == ["0750"]
    (command,) = values("ExecStart", HELPER)
    assert f"--socket {SERVICE_SOCKET} " in command
    assert SERVICE_SOCKET.parent == Path("/run", *values("RuntimeDirectory", HELPER))
    state = Path("/var/lib", *values("StateDirectory", HELPER))
    assert f"--state {state}/" in command
    assert values("StateDirectoryMode", HELPER) == ["0700"], "nobody else says what is restored"
    assert "AF_UNIX" in values("RestrictAddressFamilies")[0].split()
    assert "llmd-powerd.service" in values("After")[0].split(), "it outlives who leases from it"
