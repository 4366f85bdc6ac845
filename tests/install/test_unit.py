"""The unit is sound, hardened, and says what the daemon does."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from daemon.config.schema import DaemonConfig
from daemon.runtime.serving import STUCK_S
from tests.house.source import ROOT

UNIT = ROOT / "systemd" / "llmd.service"
MOST_EXPOSED = 1.5

needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def values(name: str) -> list[str]:
    """What a setting is set to, in order."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)


def analyze(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = ["systemd-analyze", "--no-pager", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@needs_analyze
def test_it_is_hardly_exposed(capsys: pytest.CaptureFixture[str]) -> None:
    done = analyze("security", "--offline=true", str(UNIT))
    if "nrecognized option" in done.stderr or "Unknown" in done.stderr:
        pytest.skip("this systemd-analyze rates running services only")
    score = re.search(r"Overall exposure level for llmd.service: ([\d.]+)", done.stdout)
    assert score, done.stdout + done.stderr
    assert float(score[1]) <= MOST_EXPOSED


@needs_analyze
def test_systemd_understands_every_line(tmp_path: Path) -> None:
    """Its programs are looked for, so they are put there."""
    text = UNIT.read_text(encoding="utf-8").replace("/opt/llmd", str(tmp_path))
    program = tmp_path / "venv/bin/llmd"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "llmd.service"
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
