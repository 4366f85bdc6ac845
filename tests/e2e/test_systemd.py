"""`systemctl start llmd` in a booted Debian: the whole life of the service, as it is installed."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.booted import Booted, install, make_root, unable
from tests.e2e.tiny import tiny_folder
from tests.hangs import HANG_S

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

CONFIG = """[model]
path = "/var/lib/llmd/models/tiny"
[daemon]
drain_s = {drain_s}
"""
NUM_TOKENS = 1500
ASK = f"""
import json, sys, urllib.request
body = {{"model": "tiny", "prompt": [5, 6, 7], "max_tokens": {NUM_TOKENS}, "stream": True,
        "ignore_eos": True, "temperature": 0}}
request = urllib.request.Request("http://127.0.0.1:8000/v1/completions", json.dumps(body).encode(),
                                 {{"Content-Type": "application/json"}})
lines = [line for line in urllib.request.urlopen(request) if line.startswith(b"data:")]
print(json.loads(lines[-2][5:])["choices"][0]["finish_reason"], lines[-1].decode().strip())
"""
WHOLE = "length data: [DONE]"
STATUS = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen("http://127.0.0.1:8000" + sys.argv[1], timeout=5).status)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError:
    print(0)
"""


@pytest.fixture
def booted(tmp_path: Path) -> Iterator[Booted]:
    if why := unable():
        pytest.skip(why)
    root = tmp_path / "root"
    root.mkdir()
    try:
        if why := make_root(root):
            pytest.skip(f"no Debian can be made here: {why}")
        install(root)
        for file in tiny_folder(root / "var/lib/llmd/models/tiny").iterdir():
            file.chmod(0o644)
        (root / "etc/llmd/llmd.toml").write_text(CONFIG.format(drain_s=20))
        drop_in = root / "etc/systemd/system/llmd.service.d/watchdog.conf"
        drop_in.parent.mkdir()
        drop_in.write_text("[Service]\nWatchdogSec=3\n")
        with Booted(root) as container:
            yield container
    finally:
        shutil.rmtree(root, ignore_errors=True)


def status_of(booted: Booted, path: str = "/ready") -> int:
    return int(booted.run("python3", "-", path, input=STATUS).stdout or 0)


def asking(booted: Booted) -> "subprocess.Popen[str]":
    """A streamed answer under way."""
    client = booted.start("python3", "-c", ASK)
    booted.until(lambda: running(booted) > 0, "an answer is under way")
    return client


def running(booted: Booted) -> int:
    done = booted.run("llmd", "ctl", "--socket", "/run/llmd/llmd.sock", "status", "--json")
    return int(json.loads(done.stdout)["running"]) if done.returncode == 0 else 0


def answer(client: "subprocess.Popen[str]") -> str:
    text, _ = client.communicate(timeout=HANG_S)
    return text.strip()


def journal(booted: Booted, *flags: str) -> str:
    return booted.out("journalctl", "--no-pager", "--unit=llmd", "--output=cat", *flags)


def configure(booted: Booted, drain_s: str) -> None:
    text = CONFIG.format(drain_s=drain_s)
    assert booted.run("tee", "/etc/llmd/llmd.toml", input=text).returncode == 0


def test_the_whole_life_of_the_service(booted: Booted, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        _starts(booted)
        _reloads(booted)
        _survives_kill_and_hang(booted)
        _drains_and_stops(booted)
        _stays_down_with_a_wrong_configuration(booted)
        _serves_a_model_from_a_home_folder(booted)
    finally:
        with capsys.disabled():
            print("\n" + "\n".join(booted.story))


def _starts(booted: Booted) -> None:
    booted.out("systemd-sysusers")
    booted.out("systemd-tmpfiles", "--create")
    booted.out("systemctl", "start", "llmd")
    booted.tell("systemctl start llmd: active")
    assert status_of(booted) == 200, "it is started when a first token is possible, not before"
    assert booted.show("StatusText") == "tiny at http://127.0.0.1:8000"
    pid = booted.show("MainPID")
    assert booted.out("stat", "-c", "%U", f"/proc/{pid}") == "llmd"
    assert booted.out("stat", "-c", "%a %U %G", "/run/llmd/llmd.sock") == "660 llmd llmd"
    assert answer(asking(booted)) == WHOLE
    booted.tell(f"{NUM_TOKENS} tokens streamed to a client")
    stranger = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
    denied = booted.run(*stranger, "llmd", "ctl", "--socket", "/run/llmd/llmd.sock", "status")
    assert denied.returncode == 1 and "Permission denied" in denied.stderr
    assert "is served at" in journal(booted, "--priority=info")
    assert "is served at" not in journal(booted, "--priority=warning"), "lines have priorities"


def _reloads(booted: Booted) -> None:
    pid, client = booted.show("MainPID"), asking(booted)
    configure(booted, drain_s="21")
    booted.out("systemctl", "reload", "llmd")
    assert "changed: daemon.drain_s" in journal(booted)
    booted.tell("systemctl reload llmd: daemon.drain_s changed")
    configure(booted, drain_s="'long'")
    assert booted.run("systemctl", "reload", "llmd").returncode != 0
    assert "daemon.drain_s: must be a number, got" in journal(booted, "--priority=err")
    assert booted.show("ActiveState") == "active"
    booted.tell("systemctl reload llmd with a broken file: refused, still active")
    assert answer(client) == WHOLE
    booted.tell("the answer under way was not touched")
    configure(booted, drain_s="20")
    booted.out("systemctl", "kill", "--signal=HUP", "--kill-whom=main", "llmd")
    again = "operations: read /etc/llmd/llmd.toml again"
    booted.until(lambda: journal(booted).count(again) == 2, "SIGHUP reloads as well", 15.0)
    assert booted.show("MainPID") == pid


def _survives_kill_and_hang(booted: Booted) -> None:
    for number, (signal, result) in enumerate((("KILL", "signal"), ("STOP", "watchdog")), 1):
        pid = booted.show("MainPID")
        booted.out("systemctl", "kill", f"--signal={signal}", "--kill-whom=main", "llmd")
        booted.tell(f"SIG{signal} to the main process")
        restarts = str(number)
        booted.until(lambda: booted.show("NRestarts") == restarts, "systemd starts it again")  # noqa: B023
        booted.until(lambda: status_of(booted) == 200, "ready again")
        assert booted.show("MainPID") not in ("0", pid)
        assert f"Failed with result '{result}'" in journal(booted)
    assert answer(asking(booted)) == WHOLE


def _drains_and_stops(booted: Booted) -> None:
    ctl = ("llmd", "ctl", "--socket", "/run/llmd/llmd.sock")
    client = asking(booted)
    assert booted.out(*ctl, "drain").endswith("answers under way: 1")
    assert status_of(booted) == 503 and status_of(booted, "/health") == 200
    assert answer(client) == WHOLE
    assert booted.show("ActiveState") == "active"
    booted.tell("llmd ctl drain: not ready, the answer under way finished, the unit is active")
    booted.out(*ctl, "resume")
    assert status_of(booted) == 200
    booted.tell("llmd ctl resume: ready")
    client = asking(booted)
    booted.out("systemctl", "stop", "llmd")
    assert answer(client) == WHOLE
    assert (booted.show("ActiveState"), booted.show("Result")) == ("inactive", "success")
    assert booted.show("ExecMainStatus") == "0"
    booted.tell("systemctl stop llmd: the answer under way finished, exit status 0")


def _stays_down_with_a_wrong_configuration(booted: Booted) -> None:
    configure(booted, drain_s="-1")
    assert booted.run("systemctl", "start", "llmd").returncode != 0
    assert (booted.show("ActiveState"), booted.show("ExecMainStatus")) == ("failed", "2")
    assert "daemon.drain_s: must be at least 0, got -1" in journal(booted)
    booted.tell("systemctl start llmd with a wrong file: failed, and not tried again")
    booted.out("systemctl", "reset-failed", "llmd")


def _serves_a_model_from_a_home_folder(booted: Booted) -> None:
    """The drop-in that docs/operations.md shows."""
    booted.out("mkdir", "-p", "/home/alice")
    booted.out("mv", "/var/lib/llmd/models", "/home/alice/models")
    lines = "[Service]\nProtectHome=tmpfs\nBindReadOnlyPaths=/home/alice/models\n"
    drop_in = "/etc/systemd/system/llmd.service.d/home.conf"
    assert booted.run("tee", drop_in, input=lines).returncode == 0
    model = CONFIG.format(drain_s=20).replace("/var/lib/llmd", "/home/alice")
    assert booted.run("tee", "/etc/llmd/llmd.toml", input=model).returncode == 0
    booted.out("systemctl", "daemon-reload")
    booted.out("systemctl", "start", "llmd")
    assert status_of(booted) == 200
    booted.tell("a model from a home folder is served, with a drop-in")
