"""Answer lengths are predicted beside a live daemon, learned, and known to its successor."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from daemon.config.schema import PredictConfig
from daemon.core.values.events import Predicted, RequestArrived
from daemon.journal.reader import read_records
from daemon.journal.records import FILE_NAME
from daemon.length_models.learned import Learned
from daemon.predictor.keeper import Keeper
from daemon.predictor.request_predictor import RequestPredictor
from daemon.protocol.predictor import Ask, Ended
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
    asked = {"prompt": "The quick brown fox", "max_tokens": NUM_TOKENS, "ignore_eos": True}
    state = {"STATE_DIRECTORY": str(tmp_path)}
    with LiveDaemon("--model", str(folder), "--predictor", "features", env=state) as daemon:
        model, began_s = daemon.model()["id"], time.monotonic()
        await text_of(daemon.url, model, **asked)
        await asyncio.to_thread(until_answered, daemon, 1)
        await ask_until_predicted(daemon, gives_up=False, model=model, **asked)
        seen = daemon.snapshot().predictor
        assert (seen.kind, seen.up, seen.dropped) == ("features", True, 0)
        assert 0.0 < seen.took_sum_s < 2 * (time.monotonic() - began_s)
        daemon.process.terminate()
        assert await asyncio.to_thread(daemon.process.wait, 20) == 0
        events = list(read_records(daemon.folder / "journal" / FILE_NAME))
    arrivals = [event.request for event in events if isinstance(event, RequestArrived)]
    *_, prediction = [event for event in events if isinstance(event, Predicted)]
    assert len(arrivals) >= 2 and prediction.request == arrivals[-1]
    assert prediction.num_tokens == prediction.high_tokens == NUM_TOKENS
    (store,) = (tmp_path / "predict").iterdir()
    assert store.name == f"{model}.lengths"

    flags = ["--model", str(folder), "--predictor", "mean"]
    with LiveDaemon(*flags, env=state) as successor:
        await ask_until_predicted(successor, gives_up=False, model=model, **asked)
        successor.process.terminate()
        assert await asyncio.to_thread(successor.process.wait, 20) == 0
        events = list(read_records(successor.folder / "journal" / FILE_NAME))
    predicted = [event.num_tokens for event in events if isinstance(event, Predicted)]
    assert {*predicted} == {NUM_TOKENS}, "another kind learns from the same file"


BRIEF, LONGER = "Answer in one word: is it wet?", "Write a long story about the sea."
LENGTHS = {BRIEF: 30, LONGER: 130}


def taught(path: Path) -> None:
    """Write a store of what a predictor with ranges has learned of both prompts."""
    config = PredictConfig(kind="ranges:200")
    keeper = Keeper(path, config)
    predictor = RequestPredictor(config, keeper)
    asks = [Ask(0, prompt, 9, 1000) for prompt in LENGTHS]
    vectors = [vector for _, vector in zip(asks, predictor.vectors(asks), strict=False)]
    for _ in range(Learned.LEAST // len(asks) + 1):
        for ask, vector in zip(asks, vectors, strict=True):
            predictor.predict(ask, vector)
            predictor.learn(Ended(ask.request, LENGTHS[ask.text]))
    keeper.save()


async def ask_until_predicted(daemon: LiveDaemon, *, gives_up: bool, **asked: Any) -> None:
    """A request, asked until its prediction comes before its answer ends, and given up then if
    so asked.
    """
    async with asyncio.timeout(HANG_S), aiohttp.ClientSession(daemon.url) as session:
        is_predicted, pause_s = False, 0.0
        while not is_predicted:
            await asyncio.sleep(pause_s)  # the predictor, at a low priority, loads its encoder
            pause_s = 2.0
            answering = asyncio.create_task(session.post("/v1/completions", json=asked))
            while not is_predicted and not answering.done():
                await asyncio.sleep(0.05)
                sequences = (await asyncio.to_thread(daemon.snapshot)).sequences
                is_predicted = any(sequence.predicted_tokens > 0 for sequence in sequences)
            if gives_up:
                answering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await answering).read()
        await asyncio.to_thread(daemon.idle_snapshot)


@pytest.mark.parametrize(
    ("kind", "lengths"),
    [
        ("ranges:100", [30, 130]),
        pytest.param("ranges:200", [80], marks=pytest.mark.soak),
        pytest.param("ranges:400", [80], marks=pytest.mark.soak),
    ],
)
async def test_answers_are_told_apart_that_end_in_different_ranges(
    folder: Path, tmp_path: Path, kind: str, lengths: list[int]
) -> None:
    taught(tmp_path / "predict" / f"{folder.name}.lengths")
    state = {"STATE_DIRECTORY": str(tmp_path)}
    with LiveDaemon("--model", str(folder), "--predictor", kind, env=state) as daemon:
        assert daemon.snapshot().predictor.kind == kind
        asked = {"model": daemon.model()["id"], "max_tokens": NUM_TOKENS, "ignore_eos": True}
        for prompt in LENGTHS:
            await ask_until_predicted(daemon, gives_up=True, prompt=prompt, **asked)
        daemon.process.terminate()
        assert await asyncio.to_thread(daemon.process.wait, HANG_S) == 0
        events = list(read_records(daemon.folder / "journal" / FILE_NAME))
    predicted = [event.num_tokens for event in events if isinstance(event, Predicted)]
    assert list(dict.fromkeys(predicted)) == lengths
