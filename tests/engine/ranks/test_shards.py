"""A model that several ranks share answers as the whole does."""

import random
from pathlib import Path
from typing import Any

import pytest

from daemon.protocol.worker import Failed, Load, Ready
from tests.engine.process import cpu_load
from tests.engine.ranks.group import RankGroup, answers_of, assert_as_whole
from tests.engine.tiny import VOCAB_SIZE, reference, save

NUM_BLOCKS, BLOCK_SIZE = 96, 8
NUM_OUTPUTS = 10
CASES = (("llama_tied", 2), ("qwen3", 3), ("opt", 2), ("deepseek_v3", 2))
LONG = [
    (name, size)
    for name in ("llama", "gpt_neox", "gemma2", "opt", "gpt_oss", "llama4", "deepseek_v3")
    for size in (2, 3, 4)
]


def prompts() -> list[list[int]]:
    chooser = random.Random(1)
    return [[chooser.randrange(2, VOCAB_SIZE) for _ in range(length)] for length in (1, 9, 33)]


def tiny_load(folder: Path, cache: Path, **changes: Any) -> Load:
    sizes = {"num_threads": 1, "block_size": BLOCK_SIZE, "num_blocks": NUM_BLOCKS}
    return cpu_load(str(folder), cache=str(cache), **{**sizes, **changes})


@pytest.mark.parametrize(
    ("name", "world_size"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.soak) for case in LONG)],
)
def test_ranks_give_the_text_of_the_whole_model(
    name: str, world_size: int, quick: dict[str, str], tmp_path: Path
) -> None:
    folder = save(name, tmp_path / "model")
    load = tiny_load(folder, tmp_path, num_host_blocks=64)
    with RankGroup(load, world_size, **quick) as group:
        readies = group.ready()
        assert all(isinstance(ready, Ready) for ready in readies), readies
        sizes = {(it.num_blocks, it.num_host_blocks) for it in readies if isinstance(it, Ready)}
        assert len(sizes) == 1, "all ranks have the same blocks"
        answers = answers_of(group, prompts(), BLOCK_SIZE, NUM_BLOCKS, NUM_OUTPUTS)
        assert_as_whole(reference(name), prompts(), answers)
        assert group.shut_down() == [0] * world_size


@pytest.mark.parametrize(
    ("name", "world_size", "said"),
    [
        ("opt", 5, "4 heads cannot be split over 5 ranks"),
        ("gemma4", 2, "its layers have unlike heads"),
        ("falcon_h1", 2, "falcon_h1 cannot be split over ranks yet: transformers has no plan of"),
    ],
)
def test_a_model_that_cannot_be_split_is_refused_by_name(
    name: str, world_size: int, said: str, quick: dict[str, str], tmp_path: Path
) -> None:
    folder = save(name, tmp_path / "model")
    with RankGroup(tiny_load(folder, tmp_path), world_size, **quick) as group:
        for failed in group.ready():
            assert isinstance(failed, Failed) and said in failed.message
