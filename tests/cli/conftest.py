"""A served control socket."""

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.control.server import ControlServer
from tests.cli.served import CHOSEN, Orders, snapshot
from tests.nursery.fixtures import quick, quick_python

__all__ = ["quick", "quick_python"]


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """A served control socket, its loop in a thread of its own since the client blocks."""
    CHOSEN[:] = ["sarathi"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "llmd.sock")
        serving, ended = threading.Event(), asyncio.Event()
        loop = asyncio.new_event_loop()

        async def serve() -> None:
            server = ControlServer(path, snapshot, Orders())
            await server.start()
            serving.set()
            await ended.wait()
            await server.close()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
        thread.start()
        assert serving.wait(10)
        yield path
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
        loop.close()
