"""A worker that starts at once: `python -m tests.nursery.worker --fd N --links-fd N [--spare]`.

torch takes seconds to import. So this process imports nothing: one that has imported all forks, and
its fork serves (`tests.nursery.home`). Each of the two dies a moment after the other; a signal that
stops this one does not stop the fork.
"""

import json
import os
import signal
import socket
import sys

from daemon.wire.parent import die_with_parent
from tests.nursery.relay import STATUS

NURSERY = "LLMD_NURSERY"
"""A variable of the environment: the socket of who forks."""
BY_GLOO = "LLMD_TESTS_BY_GLOO"
"""Another one: ranks of a CPU meet as those of GPUs do, by gloo for NCCL."""


def main() -> int:
    """Hand everything to a fork, and wait for its end."""
    words = sys.argv
    fd, links_fd = (int(words[words.index(flag) + 1]) for flag in ("--fd", "--links-fd"))
    die_with_parent(fd)
    told = json.dumps({"env": dict(os.environ), "spare": "--spare" in words}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as nursery:
        nursery.connect(os.environ[NURSERY])
        socket.send_fds(nursery, [told], [fd, links_fd, 2])
        for mine in (fd, links_fd):
            os.close(mine)
        said = nursery.recv(STATUS.size)
    status = int(STATUS.unpack(said)[0]) if said else -signal.SIGKILL
    if status < 0:  # the signal that ended the fork
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    os._exit(main())
