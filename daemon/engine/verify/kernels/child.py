"""The self-test's process: `python -m daemon.engine.verify.kernels.child --fd N`.

Its `Request` comes on stdin.
It imports what the kernels need and never opens the device: its forks do. Their findings go down
the pipe to the worker.
"""

import argparse
import faulthandler
import sys

import msgspec

from daemon.engine.process import share_cores
from daemon.engine.verify.kernels.forks import try_in_forks
from daemon.engine.verify.kernels.lines import write
from daemon.engine.verify.kernels.messages import Imported, Request, Untried
from daemon.wire.parent import die_with_parent


def main() -> int:
    """Try what the request names; 1 where nothing can be tried."""
    parser = argparse.ArgumentParser(prog="daemon.engine.verify.kernels.child")
    parser.add_argument("--fd", type=int, required=True, help="the pipe to the worker")
    fd = parser.parse_args().fd
    die_with_parent()
    faulthandler.enable()
    share_cores()
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    try:
        # Both bring much along; Triton may be missing.
        import daemon.engine.cuda.triton.norm  # noqa: F401
        from daemon.engine.verify.kernels.tries import try_all
    except (ImportError, OSError, RuntimeError) as error:
        write(fd, Untried(f"{type(error).__name__}: {error}"))
        return 1
    write(fd, Imported())
    try_in_forks(request, try_all, lambda message: write(fd, message))
    return 0


if __name__ == "__main__":
    sys.exit(main())
