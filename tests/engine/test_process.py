"""What processes of the engine do first: where compiled code is kept, and how long."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import daemon.engine.process
from daemon.engine.process import UNUSED_S, keep_compiled, keep_to

KEPT = """
import json, os, threading
from daemon.engine.process import keep_to

os.sched_setaffinity(0, range(os.cpu_count()))
over = threading.Event()
masks = []

def started():
    thread = threading.Thread(target=over.wait, daemon=True)
    thread.start()
    return thread.native_id

before = started()
keep_to({max(os.sched_getaffinity(0))})
for thread in (0, before, started()):
    masks.append(sorted(os.sched_getaffinity(thread)))
print(json.dumps(masks))
"""

FREED = """
import json
from pathlib import Path
from daemon.engine.process import give_back

def held_mb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon:")).split()[1]) / 1000

pieces = [bytes(10_000) for _ in range(10_000)]
del pieces[:-1]  # the last one keeps the heap from shrinking
before_mb = held_mb()
give_back()
print(json.dumps([before_mb, held_mb()]))
"""

VARIABLES = ("NUMBA_CACHE_DIR", "TRITON_CACHE_DIR")
LOCATORS = "NUMBA_CACHE_LOCATOR_CLASSES"

COMPILED = """
import sys
from pathlib import Path
from daemon.engine.process import keep_compiled

keep_compiled(Path(sys.argv[1]))
from daemon.engine.cpu.kernels import twice

assert twice(4) == 8
print(sum(twice.stats.cache_hits.values()))
"""
KERNELS = """
from numba import njit

@njit(cache=True)
def twice(x):
    return 2 * x
"""


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (*VARIABLES, LOCATORS):
        monkeypatch.setenv(variable, "x")  # so that it is put back afterwards
        monkeypatch.delenv(variable)


def entry(folder: Path, age_s: float, name: str = "kernel.cubin") -> Path:
    """A folder of compiled code that was last read so long ago."""
    folder.mkdir(parents=True)
    (folder / name).write_bytes(b"code")
    then = time.time() - age_s
    os.utime(folder / name, (then, then - UNUSED_S))
    os.utime(folder, (then - UNUSED_S, then - UNUSED_S))
    return folder


def test_every_thread_is_kept_on_the_cpus_and_those_that_follow() -> None:
    """In a process of its own, on all CPUs: the suites run on a part of them."""
    done = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, check=True)
    masks = json.loads(done.stdout)
    assert len(masks) == 3 and len(set(map(tuple, masks))) == 1, masks
    assert len(masks[0]) == 1


def test_cpus_that_are_gone_are_no_reason_to_end(caplog: pytest.LogCaptureFixture) -> None:
    before = os.sched_getaffinity(0)
    keep_to((1000,))
    assert "is not kept on cpus [1000]" in caplog.text
    keep_to(())
    assert os.sched_getaffinity(0) == before


def test_what_is_freed_below_something_in_use_is_given_back() -> None:
    found = subprocess.run([sys.executable, "-c", FREED], capture_output=True, check=True)
    before_mb, after_mb = json.loads(found.stdout)
    assert before_mb > 100.0 and after_mb < before_mb - 80.0


def test_both_compilers_keep_theirs_below_the_cache(tmp_path: Path) -> None:
    keep_compiled(tmp_path / "new")
    assert [os.environ[one] for one in VARIABLES] == [
        str(tmp_path / "new" / "numba"),
        str(tmp_path / "new" / "triton"),
    ]


def test_an_operator_s_own_folders_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    keep_compiled(tmp_path)
    assert os.environ["TRITON_CACHE_DIR"] == "/elsewhere"


def test_what_was_not_read_for_a_month_is_forgotten(tmp_path: Path) -> None:
    used = entry(tmp_path / "triton" / "used", UNUSED_S - 60.0)
    unused = entry(tmp_path / "triton" / "unused", UNUSED_S + 60.0)
    old_numba = entry(tmp_path / "numba" / "old", UNUSED_S + 60.0, "code.nbi")
    keep_compiled(tmp_path)
    assert used.exists() and not unused.exists() and not old_numba.exists()


def test_a_new_cache_has_what_the_installation_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Years ago; and what the cache has of the same name is its own."""
    monkeypatch.setattr(daemon.engine.process, "INSTALLED", tmp_path / "installed")
    entry(tmp_path / "installed" / "cpu-1", 24 * UNUSED_S)
    entry(tmp_path / "installed" / "cpu-2", 24 * UNUSED_S)
    own = entry(tmp_path / "cache" / "numba" / "cpu-2", 60.0, "own")
    keep_compiled(tmp_path / "cache")
    keep_compiled(tmp_path / "cache")
    assert (tmp_path / "cache" / "numba" / "cpu-1" / "kernel.cubin").read_bytes() == b"code"
    assert [one.name for one in own.iterdir()] == ["own"]
    found = sorted(one.name for one in own.parent.iterdir() if one.is_dir())
    assert found == ["cpu-1", "cpu-2"], "no halves are left"


def test_a_folder_that_cannot_be_made_is_not_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    keep_compiled(tmp_path / "file")
    assert not any(one in os.environ for one in VARIABLES)


def test_another_checkout_of_the_same_code_compiles_nothing(tmp_path: Path) -> None:
    """One small function in place of the kernels, which take seconds."""
    engine = Path(daemon.engine.process.__file__).parent
    hits = []
    for checkout, helpers in (("one", "A = 1"), ("two", "A = 1"), ("changed", "A = 2")):
        package = tmp_path / checkout / "daemon" / "engine"
        (package / "cpu").mkdir(parents=True)
        (package / "sampler").mkdir()
        for name in ("process.py", "sampler/sample_columns.py", "sampler/noise.py"):
            shutil.copy(engine / name, package / name)
        shutil.copy(engine.parent / "base/files.py", package.parent)
        shutil.copy(engine / "cpu" / "compiled.py", package / "cpu")
        (package / "cpu" / "kernels.py").write_text(KERNELS)
        (package / "cpu" / "team.py").write_text(helpers)  # kernels take functions from it
        done = subprocess.run(
            [sys.executable, "-c", COMPILED, str(tmp_path / "cache")],
            env={**os.environ, "PYTHONPATH": str(tmp_path / checkout)},
            cwd=tmp_path / checkout,
            capture_output=True,
            text=True,
            check=True,
        )
        hits.append(int(done.stdout))
    assert hits == [0, 1, 0]
