"""Runs one stage of an installation: a line for people, and all that its command says into a log.

    python3 scripts/stage.py LOG TITLE COMMAND...

On a terminal the line has a bar: of what pip collects and installs, or of what the command tells in
lines `progress SHARE WORDS`. A line `note: WORDS` is for people, too. Where the command fails, the
end of what it said is shown, and the log is named. It knows the standard library alone.
"""

import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"
TAIL_LINES = 20
DRAW_S = 0.25
CELLS = 24
COLLECTED = 0.6
"""Share of a stage of pip's when all is collected: the rest is unpacking."""

_COLLECTS = re.compile(r"(?:Collecting|Requirement already satisfied:) ([\w.-]+)")
_INSTALLS = re.compile(r"Installing collected packages: (.+)")
_TOLD = re.compile(r"progress ([\d.]+) ?(.*)")
_NOTE = re.compile(r"note: (.+)")
_ERASE = "\r\x1b[K"


class Progress:
    """How far a command is, as its lines tell."""

    def __init__(self, site: Path | None) -> None:
        """`site`: where pip puts packages, which are counted there; None: they are not."""
        self.share = 0.0
        self.words = ""
        pins = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
        self._expected = sum("==" in line for line in pins)
        self._collected: set[str] = set()
        self._site = site
        self._installs: set[str] = set()

    def hear(self, line: str) -> None:
        """A line that the command said."""
        if found := _COLLECTS.match(line.strip()):
            self._collected.add(_plain(found[1]))
            self.words = found[1]
            share = COLLECTED * len(self._collected) / self._expected
            self.share = max(self.share, min(COLLECTED, share))
        elif found := _INSTALLS.match(line):
            self._installs = {_plain(name) for name in found[1].split(", ")}
            self.share, self.words = COLLECTED, "unpacking"
        elif found := _TOLD.match(line):
            self.share, self.words = min(1.0, float(found[1])), found[2]

    def look(self) -> None:
        """Count what pip has unpacked by now: it says nothing meanwhile."""
        if self._installs and self._site is not None:
            names = {_plain(one.name.partition("-")[0]) for one in self._site.glob("*.dist-info")}
            done = len(names & self._installs) / len(self._installs)
            self.share = max(self.share, COLLECTED + (1.0 - COLLECTED) * done)


def main(arguments: list[str]) -> int:
    """Run the stage; the command's exit status."""
    log, title, *command = arguments
    shows = os.isatty(1) and os.environ.get("TERM", "dumb") != "dumb"
    said: list[str] = []
    began_s = time.monotonic()
    print(f"{title} ...", end="", flush=True)
    with open(log, "ab") as file:
        file.write(f"\n== {title}: {' '.join(command)}\n".encode())
        try:
            status = _run(command, file.fileno(), said, title if shows else "", began_s)
        except KeyboardInterrupt:
            print()
            return 130
    end = f"{'failed' if status else 'done'} after {time.monotonic() - began_s:.0f} s"
    print(f"{_ERASE}{title}: {end}" if shows else f" {end}")
    for note in filter(None, map(_NOTE.match, said)):
        print(f"  {note[1]}")
    if status:
        sys.stdout.flush()
        tail = [f"  | {one}" for one in said[-TAIL_LINES:]]
        print(*tail, f"all that was said is in {log}", sep="\n", file=sys.stderr)
    return status


def _run(command: list[str], log: int, said: list[str], shown: str, began_s: float) -> int:
    """Run the command with its lines in the log and in `said`; `shown`: the title, for a bar."""
    progress = Progress(_site())
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        for line in _lines(process.stdout.fileno(), log):
            if line:
                said.append(line)
                progress.hear(line)
            if shown:
                progress.look()
                _draw(shown, progress, time.monotonic() - began_s)
    return process.returncode


def _lines(fd: int, log: int) -> Iterator[str]:
    """What comes, line by line, each written to the log; an empty one where nothing came for a
    while.
    """
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while True:
            if not selector.select(DRAW_S):
                yield ""
                continue
            data = os.read(fd, 65536)
            os.write(log, data)
            *whole, rest = (rest + data).split(b"\n")
            yield from (one.decode(errors="replace").rstrip() for one in whole)
            if not data:
                yield rest.decode(errors="replace")
                return


def _draw(title: str, progress: Progress, took_s: float) -> None:
    done = round(CELLS * progress.share)
    bar = f"[{'#' * done}{'.' * (CELLS - done)}] {progress.share:>4.0%}"
    columns = os.get_terminal_size(1).columns or 80
    line = f"{title}  {bar} {took_s:>4.0f} s  {progress.words}"
    print(f"{_ERASE}{line[: columns - 1]}", end="", flush=True)


def _site() -> Path | None:
    found = sorted(Path(sys.prefix).glob("lib/python3*/site-packages"))
    return found[0] if found else None


def _plain(name: str) -> str:
    """A package's name as others write it, too."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
