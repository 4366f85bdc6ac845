"""A model that several ranks share answers as the whole does."""

import random
from pathlib import Path
from typing import Any

import pytest

from daemon.protocol.worker import Failed, Load, Ready
from tests.engine.driver import Driver
from tests.engine.process import cpu_load
from tests.engine.ranks.group import RankGroup
from tests.engine.tiny import VOCAB_SIZE, greedy, reference, save

NUM_BLOCKS, BLOCK_SIZE = 96, 8
NUM_OUTPUTS = 10
CASES = (("llama_tied", 2), ("qwen3", 3), ("opt", 2))
LONG = [(name, size) for name in ("llama", "gpt_neox", "gemma2", "opt") for size in (2, 3, 4)]


def prompts() -> list[list[int]]:
    chooser = random.Random(1)
    return [[chooser.randrange(2, VOCAB_SIZE) for _ in range(length)] for length in (1, 9, 33)]


def tiny_load(folder: Path, cache: Path, **changes: Any) -> Load:
    sizes = {"num_threads": 1, "block_size": BLOCK_SIZE, "num_blocks": NUM_BLOCKS}
    return cpu_load(str(folder), cache=str(cache), **sizes, **changes)


@pytest.mark.parametrize(
    ("name", "world_size"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.soak) for case in LONG)],
)
def test_ranks_give_the_text_of_the_whole_model(
    name: str, world_size: int, quick: dict[str, str], tmp_path: Path
) -> None:
    folder = save(name, tmp_path / "model")
    load = tiny_load(folder, tmp_path, num_host_blocks=8)
    with RankGroup(load, world_size, **quick) as group:
        readies = group.ready()
        assert all(isinstance(ready, Ready) for ready in readies), readies
        assert {ready.num_blocks for ready in readies if isinstance(ready, Ready)} == {NUM_BLOCKS}
        plans = Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
        texts = prompts()
        sequences = [plans.add(slot, tokens) for slot, tokens in enumerate(texts)]
        while going := [s for s in sequences if len(s.outputs) < NUM_OUTPUTS]:
            work = [(s, len(s.tokens) - s.num_computed) for s in going]
            if len(sequences[2].outputs) == 3:  # its first blocks go, and come back elsewhere
                plans.outs = [(block, place) for place, block in enumerate(sequences[2].blocks)]
                plans.take([], group.run(plans.plan([])))
                for place in range(len(sequences[2].blocks)):
                    block = plans.free_blocks.pop()
                    plans.table.append((2, place, block))
                    plans.ins.append((place, block))
                    sequences[2].blocks[place] = block
                plans.awaits = plans.step + 1  # this very plan's
            plans.take(work, group.run(plans.plan(work)))
        for sequence, tokens in zip(sequences, texts, strict=True):
            assert sequence.outputs == greedy(reference(name), tokens, NUM_OUTPUTS)
        assert group.shut_down() == [0] * world_size


@pytest.mark.parametrize(
    ("name", "world_size", "said"),
    [
        ("opt", 5, "4 heads cannot be split over 5 ranks"),
        ("gemma4", 2, "its layers have unlike heads"),
    ],
)
def test_a_model_that_cannot_be_split_is_refused_by_name(
    name: str, world_size: int, said: str, quick: dict[str, str], tmp_path: Path
) -> None:
    folder = save(name, tmp_path / "model")
    with RankGroup(tiny_load(folder, tmp_path), world_size, **quick) as group:
        for failed in group.ready():
            assert isinstance(failed, Failed) and said in failed.message
