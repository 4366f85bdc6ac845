"""A Debian of the test's own, booted under systemd-nspawn with llmd installed in it.

It needs root, mmdebstrap, systemd-nspawn and a mirror. The installed virtual environment is a thin
one: Debian's own Python with llmd's code as it is installed, and this machine's libraries bound
beside it, so that no gigabytes are copied.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.house.source import ROOT

RELEASE = "bookworm"
RELEASE_PYTHON = (3, 11)
PACKAGES = "systemd,systemd-sysv,dbus,python3,libgomp1"
BOOT_S = 30.0
CALL_S = 60.0
SITE = "/opt/llmd/site"  # where this machine's libraries are seen


def unable() -> str:
    """Why no Debian can be booted here; empty: one can, as far as is known before trying."""
    if os.getuid() != 0:
        return "booting a container needs root"
    for program in ("mmdebstrap", "systemd-nspawn", "nsenter", "make"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if sys.version_info[:2] != RELEASE_PYTHON:
        return f"the libraries here are not for the Python of Debian {RELEASE}"
    return ""


def make_root(root: Path) -> str:
    """A minimal Debian in the folder; why there is none if not.

    LLMD_DEBIAN_ROOT may name one that was made before, which is copied.
    """
    if ready_made := os.environ.get("LLMD_DEBIAN_ROOT"):
        command = ["cp", "-a", f"{ready_made}/.", str(root)]
    else:
        command = ["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    return done.stderr[-400:] if done.returncode else ""


def install(root: Path) -> None:
    """llmd as `make install` puts it, in a virtual environment of links."""
    flags = [f"DESTDIR={root}", "INSTALL_VENV=none", f"BUILD_PYTHON={sys.executable}"]
    subprocess.run(["make", "-s", "install", *flags], cwd=ROOT, check=True, timeout=60)
    venv = root / "opt/llmd/venv"
    site = venv / "lib/python3.11/site-packages"
    site.mkdir(parents=True)
    (root / SITE[1:]).mkdir()
    for package in ("daemon", "tui"):
        hide = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, site / package, ignore=hide)
    (site / "libraries.pth").write_text(f"{SITE}\n")
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    (venv / "bin").mkdir()
    (venv / "bin/python3").symlink_to("/usr/bin/python3")
    lines = ["#!/opt/llmd/venv/bin/python3", "from daemon.cli.main import main", "exit(main())"]
    (venv / "bin/llmd").write_text("\n".join(lines))
    (venv / "bin/llmd").chmod(0o755)


class Booted:
    """The running container; what happened in it is in `story`, a line each with its seconds."""

    def __init__(self, root: Path) -> None:
        self.story: list[str] = []
        self._began_s = time.monotonic()
        (root / "etc/machine-id").write_text(f"{os.urandom(16).hex()}\n")
        libraries = sysconfig.get_path("purelib")
        self._process = subprocess.Popen(
            [
                *("systemd-nspawn", "--quiet", f"--directory={root}", "--boot", "--console=pipe"),
                *("--register=no", "--keep-unit", "--private-network", "--link-journal=no"),
                f"--bind-ro={libraries}:{SITE}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        try:
            self.until(lambda: self._leader() > 0, "the container has a first process", BOOT_S)
            self.until(self._is_up, "systemd is up", BOOT_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def run(self, *command: str, input: str = "") -> subprocess.CompletedProcess[str]:  # noqa: A002
        """A command in the container, to its end."""
        return subprocess.run(
            [*self._inside(), *command], capture_output=True, text=True, timeout=CALL_S, input=input
        )

    def out(self, *command: str) -> str:
        """The output of a command, which must succeed."""
        done = self.run(*command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}{self.journal()}"
        return done.stdout.strip()

    def start(self, *command: str) -> subprocess.Popen[str]:
        """A command in the container, beside the test."""
        return subprocess.Popen([*self._inside(), *command], stdout=subprocess.PIPE, text=True)

    def journal(self) -> str:
        """The last lines of the container's journal."""
        return "\n" + self.run("journalctl", "--no-pager", "-n", "80").stdout

    def show(self, name: str) -> str:
        """A property of the unit."""
        return self.out("systemctl", "show", "llmd", f"--property={name}", "--value")

    def until(self, condition: Callable[[], bool], what: str, limit_s: float = CALL_S) -> None:
        """Wait for it. Raises AssertionError with the journal."""
        deadline_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline_s:
                raise AssertionError(f"not in {limit_s} s: {what}{self.journal()}")
            time.sleep(0.05)
        self.tell(what)

    def tell(self, what: str) -> None:
        """A line of the story."""
        self.story.append(f"{time.monotonic() - self._began_s:7.2f} s  {what}")

    def _inside(self) -> list[str]:
        namespaces = ("--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup")
        return ["nsenter", f"--target={self._leader()}", *namespaces, "--"]

    def _leader(self) -> int:
        """The container's first process, 0 while there is none."""
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def _is_up(self) -> bool:
        return self.run("systemctl", "is-system-running").stdout.strip() in ("running", "degraded")

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
