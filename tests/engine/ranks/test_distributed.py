"""Ranks that meet as those of GPUs do, on a CPU: gloo is to them what NCCL is to GPUs."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from daemon.engine.ranks.distributed import NO_NCCL, DistributedRanks
from daemon.models.shape import ModelError
from daemon.protocol.worker import Ready
from tests.engine.ranks.group import RankGroup, texts_of
from tests.engine.ranks.test_shards import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    NUM_OUTPUTS,
    prompts,
    tiny_load,
)
from tests.engine.tiny import greedy, reference, save
from tests.hangs import HANG_S
from tests.house.source import ROOT
from tests.nursery.worker import BY_GLOO

PROGRAM = "from tests.engine.ranks.one_of_gloo import main; main()"


def on_ranks(name: str, world_size: int, folder: Path, deadline_s: float = HANG_S) -> Iterator[Any]:
    """What each rank prints of a piece of work; None: nothing."""
    command = [sys.executable, "-c", PROGRAM, str(folder / "meeting"), name]
    going = [
        subprocess.Popen(
            [*command, str(rank), str(world_size), str(deadline_s)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        for rank in range(world_size)
    ]
    for process in going:
        said, _ = process.communicate(timeout=HANG_S)
        yield json.loads(said) if said else None


@pytest.mark.usefixtures("quick_python")
def test_all_get_the_same_sums_and_rows(tmp_path: Path) -> None:
    expected = [[[6.0] * 4] * 2, [[0, 0, 0, 2, 2]] * 2, [], [0], [0, 10, 20]]
    assert list(on_ranks("together", 3, tmp_path)) == [expected] * 3


@pytest.mark.usefixtures("quick_python")
@pytest.mark.parametrize("name", ["late", "dead"])
def test_who_waits_for_a_rank_gets_an_error_in_time(name: str, tmp_path: Path) -> None:
    first, last = on_ranks(name, 2, tmp_path)
    assert first.startswith("rank 0 cannot go on with the others by gloo: RuntimeError")
    assert last is None


@pytest.mark.usefixtures("quick_python")
def test_ranks_that_do_not_come_are_found(tmp_path: Path) -> None:
    program = PROGRAM, str(tmp_path / "meeting"), "together", "0", "2", "0.5"
    command = [sys.executable, "-c", *program]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, timeout=HANG_S, check=True)
    assert b"rank 0 does not meet the others by gloo" in done.stdout


def test_ranks_on_gpus_are_refused_without_nccl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    with pytest.raises(ModelError) as error:
        DistributedRanks(tmp_path / "meeting", 0, 2, HANG_S, torch.device("cuda:0"))
    assert str(error.value) == NO_NCCL


@pytest.mark.parametrize(
    ("name", "world_size"), [("llama_tied", 2), pytest.param("qwen3", 3, marks=pytest.mark.soak)]
)
def test_ranks_by_gloo_give_the_text_of_the_whole_model(
    name: str, world_size: int, quick: dict[str, str], tmp_path: Path
) -> None:
    folder = save(name, tmp_path / "model")
    load = tiny_load(folder, tmp_path, num_host_blocks=8)
    with RankGroup(load, world_size, **quick, **{BY_GLOO: "1"}) as group:
        readies = group.ready()
        assert all(isinstance(ready, Ready) for ready in readies), readies
        outputs = texts_of(group, prompts(), BLOCK_SIZE, NUM_BLOCKS, NUM_OUTPUTS)
        whole = reference(name)
        assert outputs == [greedy(whole, tokens, NUM_OUTPUTS) for tokens in prompts()]
        assert group.shut_down() == [0] * world_size
