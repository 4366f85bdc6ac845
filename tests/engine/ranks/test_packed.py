"""Weights in blocks, shared by ranks or split into stages, give the text of one worker."""

from pathlib import Path
from typing import Any

import pytest

from daemon.engine.loading.convert import convert
from daemon.models.embedded import ensure_converted
from daemon.protocol.worker import Failed, Load, Ready
from tests.engine.loading.gguf_files import VOCAB_SIZE, write
from tests.engine.loading.test_gguf import medium
from tests.engine.ranks.group import RankGroup, texts_of
from tests.engine.ranks.test_shards import BLOCK_SIZE, NUM_BLOCKS, NUM_OUTPUTS, tiny_load
from tests.soak import dealt

FORMS = {"Q4_K_M": medium, "Q8_0": lambda _name: "Q8_0"}
WHOLE, CUT = "qwen3", "llama"
"""Two heads of one have 256 columns, which is a block of Q4_K, and of the other 128."""
PROMPTS = [
    [3 + (7 * number + length) % (VOCAB_SIZE - 4) for number in range(length)]
    for length in (1, 9, 33)
]


def texts(load: Load, world_size: int, quick: dict[str, str]) -> list[list[int]]:
    with RankGroup(load, world_size, **quick) as group:
        readies = group.ready()
        assert all(isinstance(ready, Ready) for ready in readies), readies
        return texts_of(group, PROMPTS, BLOCK_SIZE, NUM_BLOCKS, NUM_OUTPUTS)


@pytest.mark.parametrize(("form", "way"), dealt([*FORMS], ["stages", "ranks"]))
@pytest.mark.parametrize("exact", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_weights_in_blocks_give_the_text_of_one_worker(
    form: str, way: str, exact: bool, quick: dict[str, str], tmp_path: Path
) -> None:
    path = write(tmp_path / "tiny.gguf", FORMS[form], WHOLE)
    folder = ensure_converted(path, tmp_path / "cache", convert, lambda _share: None)
    changes: dict[str, Any] = {"num_host_blocks": 8, "exact": exact}
    alone = texts(tiny_load(folder, tmp_path, **changes), 1, quick)
    if way == "stages":
        changes["stage_layers"] = (1, 1)
    assert texts(tiny_load(folder, tmp_path, **changes), 2, quick) == alone


def test_a_head_that_ends_within_a_block_is_refused_by_name(
    quick: dict[str, str], tmp_path: Path
) -> None:
    path = write(tmp_path / "tiny.gguf", medium, CUT)
    folder = ensure_converted(path, tmp_path / "cache", convert, lambda _share: None)
    with RankGroup(tiny_load(folder, tmp_path), 2, **quick) as group:
        for failed in group.ready():
            assert (
                isinstance(failed, Failed)
                and "a head's columns are no whole ones" in failed.message
            )
