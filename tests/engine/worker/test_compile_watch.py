"""Compiling is noticed while it happens, whoever compiles, and other work is not taken for it."""

import sys
import threading
import time
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import triton.compiler.compiler as real_triton
from numba.core.dispatcher import Dispatcher
from triton.compiler.compiler import CompiledKernel

from daemon.engine.worker.compile_watch import CompileWatch

Work = Callable[[threading.Event], None]


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package called triton with a compiler that takes as long as it is told."""
    home = tmp_path / "triton"
    module = ModuleType("triton")
    module.__file__ = str(home / "__init__.py")
    for name, place in (
        ("compile", "compiler/compiler.py"),
        ("launch_metadata", "compiler/compiler_of_launches.py"),
        ("run", "runtime/jit.py"),
    ):
        path = home / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"def {name}(free):\n    free.wait(20)\n")
        spec = spec_from_file_location(f"work_of_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        loaded = module_from_spec(spec)
        spec.loader.exec_module(loaded)
        setattr(module, name, getattr(loaded, name))
    monkeypatch.setitem(sys.modules, "triton", module)
    return module


def told_while(work: Work, limit_s: float) -> list[str]:
    """What a watch tells first while another thread works; nothing if nothing in this time."""
    told: list[str] = []
    watch = CompileWatch(told.append, 0.001)
    free = threading.Event()
    thread = threading.Thread(target=work, args=(free,))
    thread.start()
    watch.start()
    deadline_s = time.monotonic() + limit_s
    while not told and time.monotonic() < deadline_s:
        time.sleep(0.01)
    watch.stop()
    free.set()
    thread.join()
    return told


def test_a_compiler_at_work_is_told(compiler: ModuleType) -> None:
    assert set(told_while(compiler.compile, 10.0)) == {"triton"}


@pytest.mark.parametrize("function", ["run", "launch_metadata"])
def test_a_launch_is_not(compiler: ModuleType, function: str) -> None:
    assert told_while(getattr(compiler, function), 0.1) == []


def test_compilers_have_the_functions_that_are_looked_for() -> None:
    for owner, name in ((real_triton, "compile"), (CompiledKernel, "_init_handles")):
        assert getattr(owner, name).__code__.co_filename.endswith("/triton/compiler/compiler.py")
    assert "/numba/core/" in Dispatcher.compile.__code__.co_filename
