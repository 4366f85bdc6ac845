"""gpt-oss in blocks, as published and in GGUF files: ranks give the text of one worker."""

from pathlib import Path
from typing import Any

import pytest

from daemon.engine.loading.convert import convert
from daemon.models.embedded import ensure_converted
from tests.engine.loading.gguf_files import write
from tests.engine.loading.test_mxfp4 import mixed, published
from tests.engine.ranks.group import RankGroup, answers_of, assert_as_whole
from tests.engine.ranks.test_packed import PROMPTS, texts
from tests.engine.ranks.test_shards import BLOCK_SIZE, NUM_BLOCKS, NUM_OUTPUTS, tiny_load

__all__ = ["published"]


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_experts_in_blocks_are_cut_between_blocks(
    world_size: int, published: tuple[Path, Any], quick: dict[str, str], tmp_path: Path
) -> None:
    """Their inner width is three blocks."""
    folder, reference = published
    most = reference.config.vocab_size - 3
    prompts = [[3 + token % most for token in tokens] for tokens in PROMPTS]
    load = tiny_load(folder, tmp_path, num_host_blocks=64, exact=True)
    with RankGroup(load, world_size, **quick) as group:
        group.ready()
        found = answers_of(group, prompts, BLOCK_SIZE, NUM_BLOCKS, NUM_OUTPUTS)
    assert_as_whole(reference, prompts, found)


@pytest.mark.soak
def test_gates_and_ups_apart_are_cut_alike(quick: dict[str, str], tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", mixed, "gpt-oss")
    folder = ensure_converted(path, tmp_path / "cache", convert, lambda _share: None)
    load = tiny_load(folder, tmp_path, num_host_blocks=64, exact=True)
    assert texts(load, 2, quick) == texts(load, 1, quick)
