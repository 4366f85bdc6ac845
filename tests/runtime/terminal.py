"""A program on a terminal of its own: what it writes there, and what is left to see."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time

from tests.hangs import HANG_S

ERASE = "\x1b[K"
_ROWS_COLUMNS = (40, 100)


class Terminal:
    """The command runs in a session whose terminal this is; stdout and stderr go there."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", *_ROWS_COLUMNS, 0, 0))
        takes_it = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
        runs = f"{takes_it}; os.execvp(sys.argv[1], sys.argv[1:])"
        self.process = subprocess.Popen(
            [command[0], "-c", runs, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**env, "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(theirs)
        self._said = b""

    @property
    def said(self) -> str:
        """All that was written so far, control characters included."""
        return self._said.decode(errors="replace")

    def wait_for(self, text: str, limit_s: float = HANG_S) -> None:
        """Read until `text` was written. Raises AssertionError where it never is."""
        deadline_s = time.monotonic() + limit_s
        while text not in self.said:
            assert time.monotonic() < deadline_s and self._read(0.5), self.said

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.write(self._ours, b"\x03")

    def ended(self) -> int:
        """Read to the end; the exit status."""
        while self._read(0.5):
            pass
        os.close(self._ours)
        return self.process.wait(20)

    def _read(self, limit_s: float) -> bool:
        """Take what comes; False once there is no writer."""
        if select.select([self._ours], [], [], limit_s)[0]:
            try:
                self._said += os.read(self._ours, 65536)
            except OSError:  # every process that had the terminal has ended
                return False
        return True

    def screen(self) -> list[str]:
        """The lines that are left to see, empty ones aside."""
        lines, column = [""], 0
        rest = self.said
        while rest:
            if rest.startswith(ERASE):
                lines[-1], rest = lines[-1][:column], rest.removeprefix(ERASE)
                continue
            letter, rest = rest[0], rest[1:]
            if letter == "\n":
                lines.append("")
            column = 0 if letter in "\r\n" else column + 1
            if letter not in "\r\n":
                lines[-1] = lines[-1][: column - 1] + letter + lines[-1][column:]
        return [line for line in lines if line.strip()]
