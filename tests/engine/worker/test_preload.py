"""Importing ahead: all of it is there, nothing touches a GPU, and only the helper thread idles."""

import importlib
import os
import subprocess
import sys
import threading

import pytest
import torch

from daemon.engine.worker import preload
from daemon.engine.worker.preload import COMMON, KINDS, OF_KIND, preload_idly


@pytest.mark.parametrize("kind", KINDS)
def test_every_module_is_there(kind: str) -> None:
    for module in (*COMMON, *OF_KIND[kind]):
        importlib.import_module(module)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_spare_holds_nothing_of_a_gpu() -> None:
    program = """
import torch
from daemon.engine.worker.preload import preload
preload("cuda")
assert not torch.cuda.is_initialized()
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=100).returncode == 0


def test_what_is_missing_for_one_kind_alone_is_left_to_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(OF_KIND, "cpu", ("daemon.engine.nowhere",))
    preload.preload("cpu")


def test_the_importing_thread_alone_is_of_the_idle_class(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def note(kind: str) -> None:
        here = threading.current_thread() is threading.main_thread()
        seen.append((kind, here, os.sched_getscheduler(0)))

    monkeypatch.setattr(preload, "preload", note)
    preload_idly("cuda")
    assert seen == [("cuda", False, os.SCHED_IDLE)]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_what_cannot_be_imported_is_told_to_whoever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "COMMON", ("daemon.engine.nowhere",))
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        preload_idly("cpu")
