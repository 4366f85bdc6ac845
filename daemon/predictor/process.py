"""`python -m daemon.predictor.process --fd N --store FILE --config JSON`: started by the API.

It runs on one thread at a low priority, and loads nothing that its kind does not need.
"""

import argparse
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

from daemon.base import logs
from daemon.wire.parent import die_with_parent

NICENESS = 10
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def main() -> int:
    """Serve over the inherited socket until its end; the exit status."""
    parser = argparse.ArgumentParser(prog="daemon.predictor.process")
    parser.add_argument("--fd", type=int, required=True, help="one end of a socketpair")
    parser.add_argument("--store", type=Path, required=True, help="the file of what was learned")
    parser.add_argument("--config", default="{}", help="PredictConfig as JSON")
    arguments = parser.parse_args()
    die_with_parent(arguments.fd)
    _be_polite()
    logs.set_up("predictor")
    sock = socket.socket(fileno=arguments.fd)
    # A signal must not tear a row of the store: it ends the messages, and they end the process.
    signal.signal(signal.SIGTERM, lambda _number, _frame: _hear_no_more(sock))
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    from daemon.predictor.server import serve  # numpy reads the number of threads as it is loaded

    return serve(sock, arguments.config, arguments.store)


def _be_polite() -> None:
    os.nice(NICENESS)
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _hear_no_more(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the peer is gone already
        sock.shutdown(socket.SHUT_RD)


if __name__ == "__main__":
    sys.exit(main())
