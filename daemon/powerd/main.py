"""`llmd-powerd --socket PATH --state PATH`: started by systemd with the right to set limits."""

import argparse
import contextlib
import faulthandler
import logging
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from daemon.base import notify
from daemon.base.logs import set_up
from daemon.control.place import SocketPlace
from daemon.powerd.cards import PowerCards
from daemon.powerd.frames import SERVICE_SOCKET, PowerError
from daemon.powerd.keeper import PowerKeeper
from daemon.powerd.server import PowerServer
from daemon.powerd.state import SavedLimits

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP; 0 if every card has its own limit again, else 1."""
    given = parser().parse_args(arguments)
    set_up("powerd")
    faulthandler.enable()  # an abort by systemd's watchdog leaves the stacks in the log
    try:
        if given.restore:
            return restore(given.state)
        with _signalled() as stop:
            return serve(given.socket, given.state, stop)
    except (PowerError, OSError) as error:
        log.error("%s", error)
        return 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="llmd-powerd",
        description="Set GPU power limits for llmd while it asks for them, and restore them after.",
    )
    made.add_argument(
        "--socket", type=Path, default=SERVICE_SOCKET, help="where to listen (%(default)s)"
    )
    made.add_argument(
        "--state",
        type=Path,
        required=True,
        help="the file that holds the limits which cards had before",
    )
    made.add_argument(
        "--restore",
        action="store_true",
        help="only restore the limits that the file holds, after one that was killed",
    )
    return made


def serve(path: Path, state: Path, stop: socket.socket) -> int:
    """Restore limits after a crash, answer until `stop` can be read, and restore again.

    Raises PowerError or OSError where the state's file or the socket is not available: no card is
    changed before both are held.
    """
    place = SocketPlace(path, makes_folder=path == SERVICE_SOCKET)
    try:
        with place.take() as listener, _keeper(state) as keeper:
            try:
                keeper.settle_again()
                listener.listen()
                log.info("listens at %s", path)
                notify.ready(f"listens at {path}")
                PowerServer(keeper, listener, stop).run()
                listener.close()
            finally:
                whole = keeper.end()
    finally:
        place.give_back()
    return 0 if whole else 1


def restore(state: Path) -> int:
    """Restore the limits that a dead process left. Raises PowerError, also if another
    has the file.
    """
    with _keeper(state) as keeper:
        return 0 if keeper.end() else 1


@contextlib.contextmanager
def _keeper(state: Path) -> Iterator[PowerKeeper]:
    saved, cards = SavedLimits(state), PowerCards()
    try:
        yield PowerKeeper(cards, saved)
    finally:
        cards.close()
        saved.close()


def _signalled() -> socket.socket:
    """A socket that can be read once a signal to end came.

    SIGHUP is such a signal: the terminal was closed, and systemd, which takes that for a clean end,
    would not start it again to restore the limits. With `nohup` SIGHUP is ignored.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.detach(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    return ours


if __name__ == "__main__":
    sys.exit(main())
