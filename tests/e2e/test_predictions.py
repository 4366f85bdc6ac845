"""Answer lengths are predicted beside a live daemon, learned, and known to its successor."""

import asyncio
import time
from pathlib import Path

import pytest

from daemon.core.values.events import Predicted, RequestArrived
from daemon.journal.reader import read_records
from daemon.journal.records import FILE_NAME
from tests.e2e.live import LiveDaemon
from tests.e2e.test_lifecycle import text_of
from tests.e2e.tiny import tiny_folder
from tests.hangs import HANG_S

NUM_TOKENS = 1900
"""Long enough that a prediction comes before the answer is over."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


def until_answered(daemon: LiveDaemon, count: int) -> None:
    """Wait until so many predictions were made."""
    deadline_s = time.monotonic() + HANG_S
    while daemon.snapshot().predictor.answers < count:
        assert time.monotonic() < deadline_s, daemon.text()
        time.sleep(0.05)


async def test_a_second_request_like_the_first_is_predicted(folder: Path, tmp_path: Path) -> None:
    asked = {"prompt": "The quick brown fox", "max_tokens": NUM_TOKENS}
    state = {"STATE_DIRECTORY": str(tmp_path)}
    with LiveDaemon("--model", str(folder), "--predictor", "features", env=state) as daemon:
        model, began_s = daemon.model()["id"], time.monotonic()
        for count in (1, 2):
            await text_of(daemon.url, model, **asked)
            await asyncio.to_thread(until_answered, daemon, count)
        seen = daemon.snapshot().predictor
        assert (seen.kind, seen.up, seen.asks, seen.dropped) == ("features", True, 2, 0)
        assert 0.0 < seen.took_sum_s < 2 * (time.monotonic() - began_s)
        daemon.process.terminate()
        assert await asyncio.to_thread(daemon.process.wait, 20) == 0
        events = list(read_records(daemon.folder / "journal" / FILE_NAME))
    arrivals = [event.request for event in events if isinstance(event, RequestArrived)]
    predicted = {event.request: event for event in events if isinstance(event, Predicted)}
    assert len(arrivals) == 2
    prediction = predicted[arrivals[1]]
    assert prediction.num_tokens == prediction.high_tokens == NUM_TOKENS
    (store,) = (tmp_path / "predict").iterdir()
    assert store.name == f"{model}.lengths"

    flags = ["--model", str(folder), "--predictor", "mean"]
    with LiveDaemon(*flags, env=state) as successor:
        await text_of(successor.url, model, **asked)
        await asyncio.to_thread(until_answered, successor, 1)
        successor.process.terminate()
        assert await asyncio.to_thread(successor.process.wait, 20) == 0
        events = list(read_records(successor.folder / "journal" / FILE_NAME))
    predicted = [event.num_tokens for event in events if isinstance(event, Predicted)]
    assert predicted == [NUM_TOKENS], "another kind learns from the same file"
