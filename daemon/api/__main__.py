"""`python -m daemon.api --fd N --listen-fd M --config JSON`: started by the daemon."""

import argparse
import signal
import sys

import msgspec
import uvloop

from daemon import logs
from daemon.api.config import ApiConfig
from daemon.api.process import ApiProcess, adopt_channel, adopt_listener
from daemon.api.request_id import WithRequestId
from daemon.wire.parent import die_with_parent


def main() -> int:
    """Serve until told to stop; the exit status."""
    parser = argparse.ArgumentParser(prog="daemon.api")
    parser.add_argument("--fd", type=int, required=True, help="the runtime's Unix socket")
    parser.add_argument("--listen-fd", type=int, required=True, help="a listening TCP socket")
    parser.add_argument("--config", default="{}", help="ApiConfig as JSON")
    arguments = parser.parse_args()
    die_with_parent(signal.SIGTERM)
    logs.set_up("api", context=WithRequestId())
    config = msgspec.json.decode(arguments.config, type=ApiConfig)

    async def serve() -> None:
        channel = adopt_channel(arguments.fd)
        await ApiProcess(channel, adopt_listener(arguments.listen_fd), config).run()

    uvloop.run(serve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
