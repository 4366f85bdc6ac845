"""Ranks that meet as those of GPUs do, on a CPU: gloo is to them what NCCL is to GPUs."""

from pathlib import Path

import pytest

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
from tests.nursery.engine import BY_GLOO


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
