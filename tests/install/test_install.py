"""`make install` and `make uninstall`, into a folder of the test's own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.config.load import load
from tests.hangs import HANG_S
from tests.house.source import ROOT

FILES = {
    "etc/llmd/llmd.toml",
    "etc/systemd/system/llmd-powerd.service",
    "etc/systemd/system/llmd.service",
    "usr/lib/sysusers.d/llmd.conf",
    "usr/lib/tmpfiles.d/llmd.conf",
    "usr/local/bin/llmd",
    "usr/local/bin/llmd-powerd",
    "usr/local/bin/llmd-top",
    *(f"usr/share/bash-completion/completions/{name}" for name in ("llmd", "llmd-top")),
    *(f"usr/share/man/man1/{name}.1" for name in ("llmd", "llmd-top")),
    *(f"usr/share/zsh/vendor-completions/_{name}" for name in ("llmd", "llmd-top")),
}


def make(target: str, folder: Path, *flags: str, limit_s: float = HANG_S) -> str:
    """A target with DESTDIR; what it says. The virtual environment is left out unless asked for."""
    command = ["make", "-s", target, f"DESTDIR={folder}", f"BUILD_PYTHON={sys.executable}", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def found(folder: Path) -> set[str]:
    paths = (path for path in folder.rglob("*") if path.is_symlink() or path.is_file())
    return {path.relative_to(folder).as_posix() for path in paths}


def test_all_is_put_in_place_and_taken_away_again(tmp_path: Path) -> None:
    make("install", tmp_path, "INSTALL_VENV=none", "PREFIX=/opt/another")
    assert found(tmp_path) == FILES
    for name, command in (("llmd", "llmd serve"), ("llmd-powerd", "llmd-powerd --socket")):
        unit = (tmp_path / f"etc/systemd/system/{name}.service").read_text()
        assert f"ExecStart=/opt/another/venv/bin/{command}" in unit and "/opt/llmd" not in unit
    link = os.readlink(tmp_path / "usr/local/bin/llmd")
    assert link == "/opt/another/venv/bin/llmd", "where it will be, not where it is packed"
    config = tmp_path / "etc/llmd/llmd.toml"
    assert load(config).config == load().config
    assert config.stat().st_mode & 0o777 == 0o640, "it may hold hashes of keys"
    assert ".TH LLMD" in (tmp_path / "usr/share/man/man1/llmd.1").read_text()

    config.write_text("# mine\n")
    make("install", tmp_path, "INSTALL_VENV=none", "PREFIX=/opt/another")
    assert config.read_text() == "# mine\n"
    assert load(config.with_name("llmd.toml.new")).config == load().config

    make("uninstall", tmp_path, "PREFIX=/opt/another")
    assert found(tmp_path) == {"etc/llmd/llmd.toml", "etc/llmd/llmd.toml.new"}
    make("uninstall", tmp_path, "PREFIX=/opt/another")


@pytest.mark.parametrize(("limits", "said"), [('{"GPU-a":300000}', True), ("{}", False)])
def test_a_limit_that_could_not_be_restored_is_said(
    tmp_path: Path, limits: str, said: bool
) -> None:
    """Nobody does it any more once llmd-powerd is gone."""
    state = tmp_path / "var/lib/llmd-powerd/limits.json"
    state.parent.mkdir(parents=True)
    state.write_text(f'{{"version":1,"limits_mw":{limits},"boot_id":""}}')
    told = make("uninstall", tmp_path, "PREFIX=/opt/another")
    assert (f"own limits are in {state}" in told) is said


@pytest.mark.parametrize(
    ("prefix", "said"),
    [("/home/me/llmd", "cannot see"), ("here", "absolute path"), ("/opt/a b", "no blanks")],
)
def test_a_place_of_no_use_is_refused(tmp_path: Path, prefix: str, said: str) -> None:
    done = subprocess.run(
        ["make", "-s", "install", f"DESTDIR={tmp_path}", f"PREFIX={prefix}", "INSTALL_VENV=none"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0 and said in done.stderr
    assert found(tmp_path) == set()


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="no systemd-sysusers here")
def test_the_service_user_and_its_folders_are_understood(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for name in ("passwd", "group"):
        (tmp_path / "etc" / name).write_text("")
    for folder, kind in (("sysusers", "systemd-sysusers"), ("tmpfiles", "systemd-tmpfiles")):
        target = tmp_path / f"usr/lib/{folder}.d/llmd.conf"
        target.parent.mkdir(parents=True)
        shutil.copy(ROOT / f"systemd/llmd.{folder}.conf", target)
        flags = ["--create"] if folder == "tmpfiles" else []
        done = subprocess.run(
            [kind, f"--root={tmp_path}", *flags, "llmd.conf"], capture_output=True, text=True
        )
        assert done.returncode == 0 or os.getuid() != 0, done.stderr
        assert "syntax" not in done.stderr.lower() and "unknown" not in done.stderr.lower()


@pytest.mark.soak
def test_the_whole_installation_has_a_virtual_environment_that_knows_its_place(
    tmp_path: Path,
) -> None:
    """Gigabytes are unpacked; without a package index it is skipped."""
    python = shutil.which("python3", path="/usr/bin")
    if python is None:
        pytest.skip("this machine has no Python of its own")
    try:
        make("install", tmp_path, f"INSTALL_PYTHON={python}", limit_s=1800)
    except AssertionError as error:
        if "No matching distribution" in str(error) or "virtual environment" in str(error):
            pytest.skip(f"it cannot be installed here: {str(error)[-300:]}")
        raise
    venv = tmp_path / "opt/llmd/venv"
    for program in ("llmd", "llmd-top"):
        first = (venv / "bin" / program).read_text().splitlines()[0]
        assert first.startswith("#!/opt/llmd/venv/bin/python")
    assert str(tmp_path) not in (venv / "pyvenv.cfg").read_text()
    command = [str(venv / "bin/python3"), "-m", "daemon.cli.main", "--version"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True)
    assert done.stdout.startswith("llmd ")
