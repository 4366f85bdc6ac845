"""How a command ends early: its reader hangs up, the disk is full, a signal tells it to stop.

Each is an end that scripts know by its status and that leaves no traceback: 128 + the number of a
signal, SIGPIPE's where the reader of the output is gone.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from daemon.cli.faults import error_text

HUNG_UP = 128 + signal.SIGPIPE
_INTERRUPTED = 128 + signal.SIGINT
_ENDING = (signal.SIGTERM, signal.SIGHUP)


_signals: list[int] = []
"""The signals other than Ctrl-C that have come."""


def to_the_end(program: str, command: Callable[[], int]) -> int:
    """Run `command`; return its status, whatever ends it. Messages begin with `program`."""
    _signals.clear()
    _take_signals()
    try:
        try:
            status = command()
        finally:  # argparse leaves with SystemExit once it has printed help
            _flush()
        return _interrupted() if status == _INTERRUPTED else status
    except BrokenPipeError:
        _say_no_more()
        return HUNG_UP
    except KeyboardInterrupt:
        return _interrupted()
    except OSError as error:
        _say_no_more()
        what = error_text(error)
        if not error.filename:
            what = f"output cannot be written: {what}"
        with suppress(OSError):
            print(f"{program}: {what}", file=sys.stderr, flush=True)
        return 1
    except MemoryError as error:
        print(f"{program}: {error_text(error)}", file=sys.stderr)
        return 1


def _flush() -> None:
    """Flush the output while an error can still be reported."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _take_signals() -> None:
    """Let signals that would end the process at once clean up first; ignored ones stay ignored."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in _ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, _frame: FrameType | None) -> None:
    """Do what Ctrl-C does: an event loop ends cleanly by it."""
    _signals.append(number)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def is_signalled() -> bool:
    """Whether a signal other than Ctrl-C has come, for code that goes on after Ctrl-C."""
    return bool(_signals)


def _interrupted() -> int:
    """The status of a command that a signal ended: by the first of them."""
    return 128 + (_signals[0] if _signals else signal.SIGINT)


def _say_no_more() -> None:
    """Drop the buffered output, which would be written at the exit and fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
