"""A CPU worker's memory stays flat, however many sizes its steps have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.worker_memory import of_capacity
from daemon.engine.process import CACHE_VARIABLES, CACHED_PRIMITIVES
from tests.e2e.tiny import tiny_folder

STEPS, MARKS = 20_000, 4
MOST_MB_IN_10_000 = 1.0
"""Of growth, once the sizes have been seen (the fault model's figure)."""


def test_a_worker_bounds_the_caches_before_torch_is_imported() -> None:
    """In a process of its own, where nothing else has set them."""
    lines = "import os, sys; import daemon.engine.worker.main; assert 'torch' not in sys.modules; "
    lines += "from daemon.engine.process import bound_caches; bound_caches(); "
    lines += f"print([os.environ[name] for name in {CACHE_VARIABLES}])"
    own = {name: value for name, value in os.environ.items() if name not in CACHE_VARIABLES}
    command = [sys.executable, "-c", lines]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=own)
    assert done.stdout.strip() == str([str(CACHED_PRIMITIVES)] * 2)


RESTING = """
import ctypes, socket, time
from daemon.engine.worker import main
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def own_kb():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1])
ours, theirs = socket.socketpair()
worker = main.EngineWorker(main.BlockingChannel(ours))
worker._unprepared = False
blocks = [libc.malloc(100_000) for _ in range(1000)]
for block in blocks:
    ctypes.memset(block, 1, 100_000)
for block in blocks[:-1]:  # the last one keeps the heap from shrinking by itself
    libc.free(block)
before = own_kb()
theirs.sendall(b"\\0")  # a piece of a frame: there is something to do
ready = worker._channel.wait(0)
main._REST_S = 0.01
theirs.close()
worker._next(None, None)
kept = own_kb()
theirs_too, ours_too = socket.socketpair()
resting = main.EngineWorker(main.BlockingChannel(ours_too))
resting._unprepared = False
resting._receive = lambda: None
resting._next(None, None)
print(ready, before - kept > 50_000, before - own_kb() > 50_000, resting._has_worked)
"""


def test_a_worker_that_rests_gives_back_what_steps_have_freed() -> None:
    """Not where there is something to do."""
    done = subprocess.run(
        [sys.executable, "-c", RESTING], stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.split() == ["True", "False", "True", "False"]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_memory_does_not_grow_with_the_sizes_of_steps(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    found = of_capacity(str(folder), 0, STEPS, MARKS)["resident_mb"]
    grown = (found[-1] - found[-2]) * 10_000 / (STEPS / MARKS)
    assert grown <= MOST_MB_IN_10_000, found
