"""Compiling is noticed while it happens, whoever compiles, and other work is not taken for it."""

import sys
import threading
import time
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from daemon.engine.compile_watch import CompileWatch

Work = Callable[[threading.Event], None]


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package called triton with a compiler that takes as long as it is told."""
    home = tmp_path / "triton"
    module = ModuleType("triton")
    module.__file__ = str(home / "__init__.py")
    for name, place in (("compile_kernel", "compiler/code.py"), ("run_kernel", "runtime/jit.py")):
        path = home / place
        path.parent.mkdir(parents=True)
        path.write_text("def work(free):\n    free.wait(20)\n")
        spec = spec_from_file_location(f"work_of_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        loaded = module_from_spec(spec)
        spec.loader.exec_module(loaded)
        setattr(module, name, loaded.work)
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
    assert set(told_while(compiler.compile_kernel, 10.0)) == {"triton"}


def test_other_work_is_not(compiler: ModuleType) -> None:
    def launch(free: threading.Event) -> None:
        compiler.run_kernel(free)

    assert told_while(launch, 0.1) == []
