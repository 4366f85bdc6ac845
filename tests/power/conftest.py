"""The made-up cards and the llmd-powerd of its own tests, for those of who asks it."""

from tests.powerd.conftest import cards, lasting, powerd, pytest_asyncio_loop_factories

__all__ = ["cards", "lasting", "powerd", "pytest_asyncio_loop_factories"]
