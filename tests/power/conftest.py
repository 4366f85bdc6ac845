"""Made-up cards, a real llmd-powerd that has them, and the daemon's own event loop."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
import uvloop

from tests.powerd.fake_cards import FakeCards
from tests.powerd.live import Powerd


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Powerd]:
    """One that all tests use, and that is started again where a test has ended it."""
    folder = tmp_path_factory.mktemp("power")
    with Powerd(folder, FakeCards(folder / "cards")) as one:
        yield one


@pytest.fixture
def cards(lasting: Powerd) -> FakeCards:
    lasting.cards.reset()
    return lasting.cards


@pytest.fixture
def powerd(lasting: Powerd, cards: FakeCards) -> Iterator[Powerd]:
    yield lasting
    lasting.rest()
    assert cards.num_bad_sets() == 0
