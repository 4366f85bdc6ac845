"""How commands end early: a reader that hangs up, a full disk, a signal. Never with a traceback."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.models.embedded import embedded_gguf
from tests.cli.commands import LLMD, LLMD_TOP, TIMEOUT_S, alive, children, closed_pipe, start
from tests.supervisor.model_folder import write_llama

HUNG_UP = 128 + signal.SIGPIPE
SIMULATE = ("simulate", "--profile", "opt-13b@a100-80g", "--workload", "sharegpt", "--rate", "1")


@pytest.fixture
def checked(tmp_path: Path) -> tuple[str, ...]:
    """A check that finds nothing wrong."""
    return ("check", "--port", "0", "--model", str(write_llama(_folder(tmp_path))))


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        pytest.param(("--version",), marks=pytest.mark.soak),
        ("check",),
        pytest.param(("key", "new", "alice"), marks=pytest.mark.soak),
        pytest.param(("--print-man",), marks=pytest.mark.soak),
        pytest.param(("simulate", "--help"), marks=pytest.mark.soak),
        (*SIMULATE, "--requests", "5"),
    ],
    ids=" ".join,
)
def test_a_reader_that_hung_up_is_no_fault(
    words: tuple[str, ...], checked: tuple[str, ...], tmp_path: Path
) -> None:
    process = start(
        LLMD, *(checked if words == ("check",) else words), stdout=closed_pipe(), folder=tmp_path
    )
    _, said = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, said.decode()) == (HUNG_UP, "")


def test_llmd_top_ends_so_too(tmp_path: Path) -> None:
    process = start(LLMD_TOP, "--help", stdout=closed_pipe(), folder=tmp_path)
    _, said = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, said.decode()) == (HUNG_UP, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("command", [LLMD, LLMD_TOP])
def test_a_full_disk_is_one_sentence(command: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        process = start(command, "--help", stdout=full)
        _, said = process.communicate(timeout=TIMEOUT_S)
    name = "llmd" if command == LLMD else "llmd-top"
    assert (process.returncode, said.decode()) == (
        1,
        f"{name}: output cannot be written: No space left on device\n",
    )


def test_without_any_stdout_nothing_breaks() -> None:
    process = subprocess.Popen(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *LLMD, "key", "new", "alice"],
        stderr=subprocess.PIPE,
    )
    _, said = process.communicate(timeout=TIMEOUT_S)
    assert b"Traceback" not in said and process.returncode in (0, 1)


def _folder(parent: Path) -> Path:
    folder = parent / "model"
    folder.mkdir()
    return folder


def _loads(pid: int) -> bool:
    return bool(children(pid))


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.soak),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.soak),
    ],
)
def test_a_signal_ends_a_profile_its_worker_and_leaves_no_file(
    number: signal.Signals, status: int, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    words = ("profile", "--model", str(write_llama(_folder(tmp_path))), "--budget-s", "600")
    _end(("profile", words), number, status, _loads, tmp_path, out)


def test_a_signal_ends_a_conversion_and_what_was_written(tmp_path: Path) -> None:
    gguf = tmp_path / "slow.gguf"
    gguf.symlink_to(embedded_gguf())
    cache = tmp_path / "cache"
    words = ("check", "--model", str(gguf), "--set", f"daemon.cache={cache}", "--port", "0")

    def converts(pid: int) -> bool:  # not the child that asks the driver what GPUs there are
        return (cache / "models").is_dir() and _loads(pid)

    _end(("check", words), signal.SIGTERM, 143, converts, tmp_path, tmp_path / "none")
    left = [one.name for one in (cache / "models").iterdir()]
    assert all(name.endswith(".lock") for name in left), left


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130)],
)
@pytest.mark.soak
def test_a_signal_ends_a_simulation(number: signal.Signals, status: int, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = (*SIMULATE, "--requests", "1000000")
    _end(("simulate", words), number, status, _has_run(1.5), tmp_path, out)


@pytest.mark.parametrize(
    ("number", "status"),
    [pytest.param(signal.SIGTERM, 143, marks=pytest.mark.soak), (signal.SIGINT, 130)],
)
def test_a_signal_ends_a_sweep_and_its_processes(
    number: signal.Signals, status: int, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    words = (*SIMULATE, "--requests", "1000000", "--sweep", "--policies", "vllm,sarathi")

    simulates = _has_run(1.0)

    def one_simulates(pid: int) -> bool:
        return any(map(simulates, children(pid)))

    _end(("simulate", (*words, "--workers", "2")), number, status, one_simulates, tmp_path, out)


def _has_run(seconds: float) -> Callable[[int], bool]:
    """Whether a process has used so much processor time: its imports are done then."""

    def has(pid: int) -> bool:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) / os.sysconf("SC_CLK_TCK") > seconds

    return has


def _end(
    command: tuple[str, tuple[str, ...]],
    number: signal.Signals,
    status: int,
    under_way: Callable[[int], bool],
    folder: Path,
    out: Path,
) -> None:
    """Signal the whole group, as a terminal does, once it is under way; nothing may be left."""
    name, words = command
    extra = () if name == "check" else ("--out", str(out))
    process = start(LLMD, *words, *extra, folder=folder)
    deadline_s = time.monotonic() + TIMEOUT_S
    while not under_way(process.pid):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    below = children(process.pid)
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == status, said.decode()
    assert b"Traceback" not in said and b"Exception" not in said, said.decode()
    while any(map(alive, below)):
        assert time.monotonic() < deadline_s, "a child is left"
        time.sleep(0.02)
    assert not list(folder.glob("*out.json*")) and not out.exists()
