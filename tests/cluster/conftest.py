"""Proxies are started on the daemon's own event loop, as other children are."""

from tests.supervisor.conftest import pytest_asyncio_loop_factories, used_loop

__all__ = ["pytest_asyncio_loop_factories", "used_loop"]
