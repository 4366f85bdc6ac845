"""Delta nets cut by heads: ranks give the text of the whole model, whatever heads each has."""

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedConfig, Qwen3_5MoeTextConfig, Qwen3_5TextConfig

from daemon.models.quantised_folder import ensure_quantised
from daemon.protocol.worker import Ready
from tests.engine.ranks.group import RankGroup, texts_of
from tests.engine.ranks.test_shards import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    NUM_OUTPUTS,
    prompts,
    tiny_load,
)
from tests.engine.tiny import deeper, greedy, random_model, save_model

NETS: dict[str, Any] = {
    "head_dim": 32,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
EVEN = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
UNEVEN = {"linear_num_key_heads": 3, "linear_num_value_heads": 6}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
OF_BLOCKS = {"head_dim": 64, "linear_value_head_dim": 64}
"""Each rank's heads have whole blocks."""
CASES: dict[str, PreTrainedConfig] = {
    "uneven": Qwen3_5TextConfig(
        **{**deeper(3), "num_attention_heads": 6, "num_key_value_heads": 3}, **NETS, **UNEVEN
    ),
    "mixture": Qwen3_5MoeTextConfig(
        **deeper(3), **NETS, **EVEN, **EXPERTS, shared_expert_intermediate_size=32
    ),
}


def texts(folder: Path, cache: Path, world_size: int, quick: dict[str, str]) -> list[list[int]]:
    load = tiny_load(folder, cache, num_host_blocks=64, exact=True)
    with RankGroup(load, world_size, **quick) as group:
        readies = group.ready()
        assert all(isinstance(ready, Ready) for ready in readies), readies
        kinds = {
            (ready.num_blocks, ready.num_host_blocks, ready.windows, ready.state_pages)
            for ready in readies
            if isinstance(ready, Ready)
        }
        assert len(kinds) == 1, kinds
        return texts_of(group, prompts(), BLOCK_SIZE, NUM_BLOCKS, NUM_OUTPUTS)


@pytest.mark.parametrize("name", ["uneven", pytest.param("mixture", marks=pytest.mark.soak)])
def test_ranks_give_the_text_of_the_whole_model(
    name: str, quick: dict[str, str], tmp_path: Path
) -> None:
    whole = random_model(CASES[name], 5)
    found = texts(save_model(whole, tmp_path / "model"), tmp_path, 2, quick)
    assert found == [greedy(whole, tokens, NUM_OUTPUTS) for tokens in prompts()]


@pytest.mark.soak
def test_ranks_of_packed_weights_give_the_text_of_one(
    quick: dict[str, str], tmp_path: Path
) -> None:
    whole = random_model(
        Qwen3_5TextConfig(**{**deeper(3), "hidden_size": 128}, **{**NETS, **EVEN, **OF_BLOCKS}),
        5,
    )
    plain = save_model(whole, tmp_path / "model")
    folder = ensure_quantised(plain, "int8", tmp_path / "cache", lambda _share: None)
    assert texts(folder, tmp_path, 2, quick) == texts(folder, tmp_path, 1, quick)
