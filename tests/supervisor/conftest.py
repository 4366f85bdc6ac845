"""Children are started on the daemon's own event loop: it spawns and reaps them its own way."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True, scope="session")
def used_loop() -> None:
    """A process's first loop opens descriptors that stay."""
    uvloop.run(asyncio.sleep(0))
