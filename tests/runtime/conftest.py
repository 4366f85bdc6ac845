"""The daemon's event loop, and houses that are closed after each test."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from tests.runtime.ends import House
from tests.wire.descriptors import open_descriptors


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def house_of() -> AsyncIterator[Callable[..., House]]:
    """Builds a house; every house is closed, and no descriptor stays open."""
    before = open_descriptors()
    houses: list[House] = []

    def build(num_blocks: int = 64, **changes: object) -> House:
        houses.append(House(num_blocks, **changes))
        return houses[-1]

    yield build
    for house in houses:
        house.close()
    assert open_descriptors() == before, "descriptors were left open"
