"""What processes of the engine do first: where compiled code is kept, and how long."""

import os
import time
from pathlib import Path

import pytest

from daemon.engine.process import UNUSED_S, keep_compiled

VARIABLES = ("NUMBA_CACHE_DIR", "TRITON_CACHE_DIR")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
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


def test_a_folder_that_cannot_be_made_is_not_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    keep_compiled(tmp_path / "file")
    assert not any(one in os.environ for one in VARIABLES)
