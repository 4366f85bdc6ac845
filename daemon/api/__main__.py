"""`python -m daemon.api --fd N --listen-fd M --config JSON`: started by the daemon."""

import argparse
import faulthandler
import signal
import sys

from daemon.wire.parent import die_with_parent


def main() -> int:
    """Serve until told to stop; the exit status."""
    parser = argparse.ArgumentParser(prog="daemon.api")
    parser.add_argument("--fd", type=int, required=True, help="the runtime's Unix socket")
    parser.add_argument("--listen-fd", type=int, required=True, help="a listening TCP socket")
    parser.add_argument("--config", default="{}", help="ApiConfig as JSON")
    arguments = parser.parse_args()
    die_with_parent(arguments.fd)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # a daemon asks so where this process hangs

    # The rest takes a second to import, in which the daemon may die as well.
    from daemon.api.front.process import serve

    serve(arguments.fd, arguments.listen_fd, arguments.config)
    return 0


if __name__ == "__main__":
    sys.exit(main())
