"""Children are started on the daemon's own event loop: it spawns and reaps them its own way."""

import asyncio

import pytest
import uvloop


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy()
