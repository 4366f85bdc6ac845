"""Notices a compiler at work in the middle of serving, which would otherwise look like a hang.

Warm-up compiles what serving is known to need. An unforeseen shape still costs a second or more on
its first use, now and then several at once. So a thread checks, once a second, whether any thread
of this process is inside a compiler, and reports it; the daemon's watch over steps then waits. It
reads stacks, since neither compiler has a hook that is called before it compiles.
"""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

INTERVAL_S = 1.0
_COMPILERS = {"triton": "compiler", "numba": "core"}
"""Packages, and the folder of each in which its compiler lies."""
_COMPILING = ("compile", "_init_handles")
"""Functions there through which all compiling passes, launchers' too, but no launch of compiled
code: Triton asks for a launch's metadata in the same folder every time."""


class CompileWatch:
    """Calls `tell(package)` once a second while one of the compilers works; ends with the process.

    `tell` runs on the watching thread.
    """

    def __init__(self, tell: Callable[[str], None], interval_s: float = INTERVAL_S) -> None:
        self._tell = tell
        self._interval_s = interval_s
        self._folders = _folders()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compile-watch", daemon=True)

    def start(self) -> None:
        """Start the watch, once all that serving needs is imported."""
        self._thread.start()

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            for frame in sys._current_frames().values():
                if package := self._package_of(frame):
                    self._tell(package)
                    break

    def _package_of(self, frame: FrameType | None) -> str:
        """The compiler in whose code a stack is; empty: in none."""
        while frame is not None:
            code = frame.f_code
            for folder, package in self._folders:
                if code.co_name in _COMPILING and code.co_filename.startswith(folder):
                    return package
            frame = frame.f_back
        return ""


def _folders() -> list[tuple[str, str]]:
    """Folders of the imported compilers' code, with the compilers' names."""
    found = []
    for package, folder in _COMPILERS.items():
        module = sys.modules.get(package)
        if module is not None and module.__file__:
            found.append((f"{Path(module.__file__).parent / folder}/", package))
    return found
