"""Recurrent layers that ranks share: delta nets by heads, whatever each has, and convolutions."""

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    Lfm2Config,
    Lfm2MoeConfig,
    PreTrainedConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from daemon.models.quantised_folder import ensure_quantised
from daemon.protocol.worker import Ready
from tests.engine.ranks.group import (
    GroupAnswer,
    RankGroup,
    answers_of,
    assert_as_one,
    assert_as_whole,
    assert_texts_of,
)
from tests.engine.ranks.test_shards import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    NUM_OUTPUTS,
    prompts,
    tiny_load,
)
from tests.engine.tiny import deeper, random_model, save_model

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
    "woven": Qwen3NextConfig(
        **{**deeper(3), "num_attention_heads": 6, "num_key_value_heads": 3},
        **NETS,
        **UNEVEN,
        **EXPERTS,
        shared_expert_intermediate_size=32,
    ),
    "convolutions": Lfm2Config(
        **deeper(3),
        layer_types=["conv", "full_attention", "conv"],
        block_auto_adjust_ff_dim=False,
        conv_bias=True,
    ),
    "convolutions and experts": Lfm2MoeConfig(
        **deeper(3),
        layer_types=["conv", "full_attention", "conv"],
        num_dense_layers=1,
        **EXPERTS,
    ),
}
QUICK = {"uneven", "convolutions"}
APART = {"mixture", "woven"}
"""Models of which one worker's logits are up to 7e-4 from transformers' own already."""


def answers(folder: Path, cache: Path, world_size: int, quick: dict[str, str]) -> list[GroupAnswer]:
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
        return answers_of(group, prompts(), BLOCK_SIZE, NUM_BLOCKS, NUM_OUTPUTS)


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.soak) for name in CASES],
)
def test_ranks_give_the_text_of_the_whole_model(
    name: str, quick: dict[str, str], tmp_path: Path
) -> None:
    whole = random_model(CASES[name], 5)
    folder = save_model(whole, tmp_path / "model")
    found = answers(folder, tmp_path, 2, quick)
    if name not in APART:
        assert_as_whole(whole, prompts(), found)
    else:
        assert_as_one(found, answers(folder, tmp_path, 1, quick))
        assert_texts_of(whole, prompts(), found)


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
    assert_as_one(*(answers(folder, tmp_path, count, quick) for count in (2, 1)))
