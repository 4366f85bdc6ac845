"""A Ray cluster of several nodes on this machine: on loopback, small, ended by its own pids."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cluster.ray_node import LOOPBACK_ONLY, UP
from tests.e2e.live import free_port
from tests.hangs import HANG_S

LOOPBACK = "127.0.0.1"


def descendants(pid: int) -> list[int]:
    """All processes below one, those of other sessions too."""
    found = []
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        below = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return []
    for child in below:
        found += [child, *descendants(child)]
    return found


class RayNode:
    """One node: a process, and all that it started."""

    def __init__(self, name: str, address: str, folder: Path, is_head: bool, env: dict[str, str]):
        command = [sys.executable, "-m", "tests.cluster.ray_node", name, address]
        command += [str(folder / "ray"), *(["head"] if is_head else [])]
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **LOOPBACK_ONLY, **env}
            )

    def kill(self) -> None:
        """End all of its processes at once, as when its machine loses power."""
        pids = [self.process.pid, *descendants(self.process.pid)]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped, none of them tells the others
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        self.process.wait()

    def pids(self) -> list[int]:
        """Of all its processes."""
        return [self.process.pid, *descendants(self.process.pid)]


class RayCluster:
    """A head and further nodes, each with one CPU."""

    def __init__(self, **env: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="llmd-ray-"))
        self._env = env
        self.address = f"{LOOPBACK}:{free_port()}"
        self.nodes: dict[str, RayNode] = {}

    def add(self, name: str) -> RayNode:
        """Start a node, the head if it is the first."""
        node = RayNode(name, self.address, self._folder, not self.nodes, self._env)
        self.nodes[name] = node
        self._await(node)
        return node

    def _await(self, node: RayNode) -> None:
        deadline_s = time.monotonic() + 6 * HANG_S
        while UP not in node.log.read_text(errors="replace"):
            assert node.process.poll() is None, node.log.read_text()
            assert time.monotonic() < deadline_s, node.log.read_text()
            time.sleep(0.1)

    def kill(self, name: str) -> None:
        """End a node without a word."""
        self.nodes.pop(name).kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in reversed(list(self.nodes)):
            self.kill(name)
        shutil.rmtree(self._folder, ignore_errors=True)
