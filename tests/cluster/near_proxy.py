"""A proxy whose node is its own process: `python -m tests.cluster.near_proxy --fd N`, without Ray.

It passes frames as a proxy does, to a host that it calls itself.
"""

import argparse
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

from daemon.cluster.host import WorkerHost
from daemon.cluster.proxy import pass_down, pass_up
from daemon.protocol.worker import Loading, OnNode
from daemon.wire.blocking import BlockingChannel
from daemon.wire.columns import encoder
from daemon.wire.parent import die_with_parent
from tests.cluster.hosts import TOY, begun, connected, door_of


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--worker", default=TOY)
    arguments = parser.parse_args()
    die_with_parent(arguments.fd)
    channel, host = BlockingChannel(socket.socket(fileno=arguments.fd)), WorkerHost()
    channel.send(encoder().encode(Loading("node", 0.0)))
    assert begun(host, module=arguments.worker) == ""
    door = door_of(host)
    channel.send(encoder().encode(OnNode("near", door)))
    with ThreadPoolExecutor(1) as beside:
        connection, end = connected(host, beside, door)

        def down() -> None:
            pass_down(channel, connection.send)
            os._exit(0)

        threading.Thread(target=down, daemon=True).start()
        pass_up(connection.receive, channel)
        pass_up(iter([end.result(), b""]).__next__, channel)
    return 0


if __name__ == "__main__":
    os._exit(main())
