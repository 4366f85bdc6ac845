"""Recurrent layers that ranks share: delta nets and Mamba 2 by heads, Mamba 1 and convolutions by
channels.
"""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    BambaConfig,
    FalconMambaConfig,
    GraniteMoeHybridConfig,
    JambaConfig,
    KimiLinearConfig,
    Lfm2Config,
    Lfm2MoeConfig,
    Mamba2Config,
    MambaConfig,
    NemotronHConfig,
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
    NUM_OUTPUTS,
    prompts,
    tiny_load,
)
from tests.engine.tiny import VOCAB_SIZE, deeper, random_model, save_model

NUM_BLOCKS = 1024
"""States of four sequences take many of a tiny model's small blocks."""
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
ALONE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "initializer_range": 0.5,
}
SCAN: dict[str, Any] = {"mamba_d_head": 16, "mamba_d_state": 16, "mamba_expand": 2}
HYBRID = ["linear_attention", "full_attention", "linear_attention"]
KIMI: dict[str, Any] = {
    **deeper(3),
    "num_key_value_heads": 4,
    "layer_types": HYBRID,
    "mlp_layer_types": ["dense", "sparse", "dense"],
    "linear_head_dim": 16,
    "linear_num_heads": 3,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 20,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "moe_intermediate_size": 32,
}
CASES: dict[str, PreTrainedConfig] = {
    # Three groups for two ranks; a mixture beside an MLP.
    "granite": GraniteMoeHybridConfig(
        **{**deeper(3), "hidden_size": 96, "num_attention_heads": 6},
        **SCAN,
        shared_intermediate_size=96,
        layer_types=HYBRID,
        num_local_experts=4,
        num_experts_per_tok=2,
        mamba_n_heads=12,
        mamba_n_groups=3,
    ),
    # One group, which all ranks have.
    "bamba": BambaConfig(**deeper(3), **SCAN, attn_layer_indices=[1], mamba_n_heads=8),
    "nemotron": NemotronHConfig(
        **{**deeper(6), "num_attention_heads": 6, "num_key_value_heads": 3},
        head_dim=16,
        layers_block_type=[
            *("linear_attention", "mlp", "linear_attention"),
            *("full_attention", "mlp", "moe"),
        ],
        mamba_num_heads=6,
        mamba_head_dim=16,
        n_groups=2,
        ssm_state_size=8,
        time_step_min=0.01,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        moe_shared_expert_intermediate_size=32,
    ),
    "mamba 2": Mamba2Config(
        **ALONE, num_heads=8, head_dim=16, n_groups=2, state_size=8, expand=2, use_bias=True
    ),
    "mamba": MambaConfig(**ALONE, state_size=8, use_bias=True),
    "falcon mamba": FalconMambaConfig(**ALONE, state_size=8),
    "jamba": JambaConfig(
        **deeper(3),
        attn_layer_period=3,
        attn_layer_offset=1,
        num_experts=4,
        num_experts_per_tok=2,
        mamba_d_state=8,
        mamba_dt_rank=6,
        mamba_expand=2,
    ),
    "kimi": KimiLinearConfig(**KIMI),
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
QUICK = {("uneven", 2), ("convolutions", 2), ("bamba", 3), ("mamba", 2)}
APART = {"mixture", "woven", "granite", "jamba", "kimi"}
"""Models of which one worker's logits are up to 7e-4 from transformers' own already."""


def answers(folder: Path, cache: Path, world_size: int, quick: dict[str, str]) -> list[GroupAnswer]:
    load = tiny_load(folder, cache, num_blocks=NUM_BLOCKS, num_host_blocks=NUM_BLOCKS, exact=True)
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
    ("name", "world_size"),
    [
        pytest.param(*case, marks=[] if case in QUICK else pytest.mark.soak)
        for case in product(CASES, (2, 3))
    ],
)
def test_ranks_give_the_text_of_the_whole_model(
    name: str, world_size: int, quick: dict[str, str], tmp_path: Path
) -> None:
    whole = random_model(CASES[name], 5)
    folder = save_model(whole, tmp_path / "model")
    found = answers(folder, tmp_path, world_size, quick)
    if name not in APART:
        assert_as_whole(whole, prompts(), found)
    else:
        assert_as_one(found, answers(folder, tmp_path, 1, quick))
        assert_texts_of(whole, prompts(), found)


WIDE: dict[str, Any] = {**deeper(3), "hidden_size": 256}
"""Four heads of 64 numbers: each of two ranks has whole blocks of them."""
PACKED: dict[str, PreTrainedConfig] = {
    "delta net": Qwen3_5TextConfig(
        **{**deeper(3), "hidden_size": 128}, **{**NETS, **EVEN, **OF_BLOCKS}
    ),
    "bamba": BambaConfig(
        **WIDE, **{**SCAN, "mamba_d_head": 64}, attn_layer_indices=[1], mamba_n_heads=8
    ),
    "mamba 2": Mamba2Config(
        **{**ALONE, "hidden_size": 128}, num_heads=8, head_dim=32, n_groups=2, state_size=8
    ),
    "mamba": MambaConfig(**{**ALONE, "hidden_size": 128}, state_size=8),
    "kimi": KimiLinearConfig(
        **{
            **KIMI,
            "linear_num_heads": 4,
            "linear_head_dim": 64,
            "v_head_dim": 64,
            "intermediate_size": 256,
            "moe_intermediate_size": 256,
        }
    ),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", PACKED)
def test_ranks_of_packed_weights_give_the_text_of_one(
    name: str, quick: dict[str, str], tmp_path: Path
) -> None:
    plain = save_model(random_model(PACKED[name], 5), tmp_path / "model")
    folder = ensure_quantised(plain, "int8", tmp_path / "cache", lambda _share: None)
    assert_as_one(*(answers(folder, tmp_path, count, quick) for count in (2, 1)))
