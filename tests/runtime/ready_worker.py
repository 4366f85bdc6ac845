"""A worker that is ready at once and computes nothing: `python -m tests.runtime.ready_worker`."""

import os

from daemon.protocol.worker import Load, Ready
from tests.chaos.worker import ToyWorker, main


class ReadyWorker(ToyWorker):
    """Needs no model, only to be told of one."""

    def serve(self, spare: bool) -> int:
        while message := self._receive():
            if isinstance(message, Load):
                self._send(Ready(message.num_blocks, 1, 1, 0.001))
        return 0


if __name__ == "__main__":
    os._exit(main(lambda channel, _links_fd: ReadyWorker(channel)))
