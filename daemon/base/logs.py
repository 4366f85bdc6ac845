"""The logging of every llmd process: one handler on stderr, as text for people or as JSON lines.

The daemon decides from its configuration and leaves the decision in the environment, which all its
descendants inherit. Prompts, answers and keys are never logged; a text that a client chose, such as
a model's name, may stand in a line but cannot begin one.
"""

import contextlib
import datetime as dt
import json
import logging
import os
import queue
import re
import select
import sys
import threading
from types import TracebackType

FORMATS = ("auto", "text", "json")

_LEVEL, _FORMAT = "LLMD_LOG_LEVEL", "LLMD_LOG_FORMAT"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_PRIORITIES = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
    (logging.DEBUG, 7),
)

_ERASE = "\x1b[K"
"""The terminal's code to erase from the cursor to the end of its line."""

MOST_LINES = 10_000
"""Lines at most that wait for the reader of stderr."""
FLUSH_S = 1.0
"""Longest wait for these lines when the process ends."""

log = logging.getLogger(__name__)


def set_up(
    process: str,
    level: str = "",
    form: str = "",
    context: logging.Filter | None = None,
) -> None:
    """Log this process's records to stderr from now on, its warnings and last words included.

    `process` names it in each line. `level` and `form` (one of FORMATS) are given by the daemon;
    its children leave them out. `context` may give records the attribute `request_id`. A thread
    writes: call `logging.shutdown` before `os._exit`.
    """
    os.environ[_LEVEL] = level or os.environ.get(_LEVEL, "info")
    os.environ[_FORMAT] = form or os.environ.get(_FORMAT, "auto")
    handler = BesideHandler(os.environ[_FORMAT] != "json" and _stderr_is_terminal())
    handler.setFormatter(_formatter(process, os.environ[_FORMAT]))
    if context is not None:
        handler.addFilter(context)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(os.environ[_LEVEL].upper())
    logging.getLogger("numba").setLevel(logging.WARNING)  # at debug it logs all that it compiles
    logging.captureWarnings(True)
    sys.excepthook = _last_words


def set_level(level: str) -> None:
    """Use another level from now on, in this process and in those that it starts."""
    os.environ[_LEVEL] = level
    logging.getLogger().setLevel(level.upper())


def show(text: str) -> None:
    """Keep a line at the end of a terminal, in place of the previous one; an empty one removes it.

    Does nothing where stderr is no terminal: files and journals hold log lines alone.
    """
    for handler in logging.getLogger().handlers:
        if isinstance(handler, BesideHandler):
            handler.show(text)


def shows() -> bool:
    """Whether `show` has a terminal."""
    return any(
        isinstance(handler, BesideHandler) and handler.on_terminal
        for handler in logging.getLogger().handlers
    )


def _formatter(process: str, form: str) -> logging.Formatter:
    """The formatter of a form; "auto" is text. The journal keeps time, unit and process of each
    line and takes the priority from a prefix, so JSON there would only be harder to read.
    """
    if form == "json":
        return JsonFormatter(process)
    return TextFormatter(process, _stderr_is_journal())


def _stderr_is_terminal() -> bool:
    """Whether stderr goes to a terminal that can erase a line."""
    return os.isatty(2) and os.environ.get("TERM", "dumb") != "dumb"


def _stderr_is_journal() -> bool:
    """Whether stderr goes to systemd's journal: it names the stream's device and inode."""
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM", "") == f"{found.st_dev}:{found.st_ino}"


def _last_words(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        log.critical("this process ends", exc_info=(kind, error, trace))


class BesideHandler(logging.Handler):
    """Writes lines to stderr in a thread. A stopped terminal (Ctrl-S), or a pipe without a reader,
    blocks that thread alone; lines beyond `MOST_LINES` are lost.

    On a terminal one line may stand below the others. The cursor is left at its beginning, and
    every llmd process erases it before it writes a line of its log.
    """

    def __init__(self, on_terminal: bool = False) -> None:
        super().__init__()
        self.on_terminal = on_terminal
        self._lines: queue.Queue[str] = queue.Queue(MOST_LINES)
        self._num_lost = 0
        self._shown = ""
        threading.Thread(target=self._work, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record's lines."""
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._num_lost += 1
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)

    def show(self, text: str) -> None:
        """See `show`."""
        if self.on_terminal and text != self._shown:
            self._shown = text
            if self._lines.empty():  # else it is drawn with the lines that wait
                self._lines.put_nowait("")

    def flush(self) -> None:
        """Wait until all is written, for `FLUSH_S` at most; the end of the process does."""
        done = self._lines.all_tasks_done
        with done:
            done.wait_for(lambda: not self._lines.unfinished_tasks, FLUSH_S)

    def _work(self) -> None:
        while True:
            self._write(self._lines.get())
            if self._num_lost:
                lost, self._num_lost = self._num_lost, 0
                text = f"{lost} lines of the log are lost: stderr was not read"
                said = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING"}
                self._write(self.format(logging.makeLogRecord({**said, "msg": text})))
            self._lines.task_done()

    def _write(self, lines: str) -> None:
        """Write past `sys.stderr`, whose lock the end of the interpreter would wait for."""
        text = f"{lines}\n" if lines else ""
        if self.on_terminal:
            below = self._shown[: max(0, _columns() - 1)]
            text = f"{_ERASE}{text}{below}\r" if below else f"{_ERASE}{text}"
        rest = memoryview(text.encode(errors="backslashreplace"))
        with contextlib.suppress(OSError):  # no reader is there
            while rest:
                try:
                    rest = rest[os.write(2, rest) :]
                except BlockingIOError:
                    select.select([], [2], [])


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80


class TextFormatter(logging.Formatter):
    """One line per event; a traceback's lines are indented, so that none looks like an event.

    For the journal each line has its priority in front, and no time. At info the logger's name is
    left out.
    """

    def __init__(self, process: str, for_journal: bool) -> None:
        super().__init__()
        self._process = process
        self._for_journal = for_journal

    def format(self, record: logging.LogRecord) -> str:
        """The record's lines."""
        request = getattr(record, "request_id", "")
        said_by = self._process
        if record.levelno != logging.INFO:  # a fault's place helps to find it
            said_by += f" {record.name}"
        head = f"{record.levelname} {said_by}: "
        if request:
            head += f"[{request}] "
        lines = [head + _plain(record.getMessage())]
        lines += [f"  | {_plain(line)}" for line in _trace(record).splitlines()]
        if self._for_journal:
            return "\n".join(f"<{_priority(record)}>{line}" for line in lines)
        lines[0] = f"{_time(record)} {lines[0]}"
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, process, logger, message; where there is one, also
    request_id and exception.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line, in ASCII."""
        fields = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request := getattr(record, "request_id", ""):
            fields["request_id"] = request
        if trace := _trace(record):
            fields["exception"] = trace
        return json.dumps(fields)


def _trace(record: logging.LogRecord) -> str:
    """The traceback, and the stack where it was wanted."""
    parts = [record.stack_info or ""]
    if record.exc_info:
        parts.insert(0, logging.Formatter().formatException(record.exc_info))
    return "\n".join(part for part in parts if part)


def _plain(text: str) -> str:
    """The text with control characters escaped: a line stays one line, and terminals show them."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def _priority(record: logging.LogRecord) -> int:
    """syslog's number, as systemd reads it."""
    return next((number for level, number in _PRIORITIES if record.levelno >= level), 7)


def _time(record: logging.LogRecord) -> str:
    moment = dt.datetime.fromtimestamp(record.created, dt.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def in_a_line(error: BaseException) -> str:
    """The first cause of an exception, as one line of at most 300 characters."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
