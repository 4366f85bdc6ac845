"""A proxy whose node is its own process: `python -m tests.cluster.near_proxy --fd N`, without Ray.

It passes frames as a proxy does, to a host that it calls itself.
"""

import argparse
import os
import socket
import threading
from itertools import count

import msgspec

from daemon import __version__
from daemon.cluster.host import NUMBER_BYTES, Begin, WorkerHost
from daemon.protocol.worker import Loading, OnNode
from daemon.wire.blocking import BlockingChannel
from daemon.wire.columns import encoder
from daemon.wire.frames import FrameReader, inline_frame
from daemon.wire.parent import die_with_parent


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    arguments = parser.parse_args()
    die_with_parent(arguments.fd)
    channel, host, reader = (
        BlockingChannel(socket.socket(fileno=arguments.fd)),
        WorkerHost(),
        FrameReader(),
    )
    channel.send(encoder().encode(Loading("node", 0.0)))
    begin = Begin(__version__, "tests.chaos.worker", "cpu")
    assert host.begin(msgspec.msgpack.encode(begin)) == b""
    channel.send(encoder().encode(OnNode("near")))

    def pass_down() -> None:
        for number in count():
            if (payload := channel.receive()) is None:
                os._exit(0)
            host.give(number.to_bytes(NUMBER_BYTES, "little") + inline_frame(payload))

    threading.Thread(target=pass_down, daemon=True).start()
    while frames := host.take():
        reader.feed(frames)
        for payload in reader.payloads():
            channel.send(payload)
    return 0


if __name__ == "__main__":
    os._exit(main())
