"""A process that has imported Triton's interpreter and torch; each program is a fork of it.

Triton decides whether it interprets when it is first imported, so that programs whose kernels run
interpreted cannot share a test's process; each alone would take seconds to import torch.
`python -m tests.engine.interpreting` reads lines of JSON, [file of the program, arguments, files
for output and errors], and answers each with its exit status.
"""

import contextlib
import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from tests.house.source import ROOT


class Interpreting:
    """The process, asked for one program at a time."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self._process = process
        self._folder = folder

    def output(self, program: str, *arguments: str) -> str:
        """The output of a program, which must succeed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        path, said, errors = (self._folder / name for name in ("program.py", "said", "errors"))
        path.write_text(program)
        order = [str(path), arguments, str(said), str(errors)]
        print(json.dumps(order), file=self._process.stdin, flush=True)
        status = self._process.stdout.readline()
        assert status == "0\n", errors.read_text(errors="replace")
        return said.read_text().strip()


@contextlib.contextmanager
def interpreting(folder: Path) -> Iterator[Interpreting]:
    """The process, for as long as it is wanted."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.engine.interpreting"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    ) as process:
        yield Interpreting(process, folder)
        assert process.stdin is not None
        process.stdin.close()  # it ends


def _run(path: str, arguments: list[str], said: str, errors: str) -> int:
    """A fork's life; its exit status."""
    for number, file in ((1, said), (2, errors)):
        target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, number)
        os.close(target)
    sys.argv = [path, *arguments]
    try:
        runpy.run_path(path, run_name="__main__")
        status = 0
    except BaseException:  # noqa: BLE001 - the status and the errors say it
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def main() -> int:
    """Fork for each line, until there are no more."""
    from daemon.engine.worker.preload import preload
    from tests.gpu.patched_once import patch_once

    preload("cuda")
    patch_once()
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            os._exit(_run(*json.loads(line)))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
