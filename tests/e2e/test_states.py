"""Moves between real workers, and kills of them, change no text of a model some of whose layers
have windows, nor of one some of whose layers keep states.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.live import LiveDaemon
from tests.e2e.moves import KINDS, RUNNING, WAITING
from tests.e2e.test_kills import check_kills
from tests.e2e.test_lifecycle import text_of
from tests.e2e.test_migrations import KV_BLOCKS, LONG, SHORT, bodies, move_about
from tests.e2e.tiny import STATES, WINDOWS, tiny_folder
from tests.soak import tries

OF_LAYERS = {STATES: ["full", "state"], WINDOWS: ["full", "window"]}
"""The kinds of pages that each model has."""


@pytest.fixture(scope="module", params=OF_LAYERS)
def daemon(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveDaemon]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    model = tiny_folder(folder / "tiny", request.param)
    flags = ["--model", str(model), "--kv-blocks", str(KV_BLOCKS)]
    flags += ["--instance", "cpu:mixed", "cpu:mixed", "--policy", "mlfq", "--predictor", "none"]
    flags += ["--set", 'memory.swap="proactive"', "--set", "scheduler.prefill_chunk=64"]
    with LiveDaemon(*flags, "--set", "daemon.threads=1") as daemon:
        daemon.wait_all_ready()
        seen = daemon.snapshot().instances[0]
        assert [kind.kind for kind in seen.kv_kinds] == OF_LAYERS[request.param]
        yield daemon


def hits(daemon: LiveDaemon) -> int:
    """Sequences that went on from a snapshot."""
    return sum(one.states.hits for one in daemon.snapshot().instances if one.states)


async def test_a_few_moves_change_no_text(daemon: LiveDaemon) -> None:
    num_pages = daemon.snapshot().instances[0].kv_blocks
    await move_about(daemon, bodies(4, num_tokens=60), SHORT, (RUNNING, WAITING), num_pages)
    assert daemon.snapshot().counters.sent_blocks


async def test_a_prompt_that_comes_again_goes_on_from_its_snapshot(daemon: LiveDaemon) -> None:
    model, before = daemon.model()["id"], hits(daemon)
    asked = {"prompt": list(range(5, 305)), "max_tokens": 20}
    first, *again = [await text_of(daemon.url, model, **asked) for _ in range(3)]
    assert again == [first, first]
    if daemon.snapshot().instances[0].states:
        assert hits(daemon) > before


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_five_hundred_moves_change_no_text(daemon: LiveDaemon) -> None:
    seen = daemon.snapshot().instances[0]
    await move_about(daemon, bodies(16, num_tokens=120), LONG, KINDS, seen.kv_blocks)
    if not seen.states:
        assert sum(one.ahead_used for one in daemon.snapshot().instances)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("instances", [1, 2])
async def test_kills_in_a_small_pool_change_no_text(tmp_path: Path, instances: int) -> None:
    folder = tiny_folder(tmp_path / "tiny", STATES)
    await check_kills(folder, instances, tries(4, 40), kv_blocks=150)
