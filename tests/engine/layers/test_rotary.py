"""Rotary positions that depend on a sequence's length: those of the longest that is served."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config

from daemon.engine.layers.rotary import settle_rotary
from tests.engine.verify.model.tries import COMMON

LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
}
ORIGINAL_LEN = 64


def phi3() -> Any:
    config = Phi3Config(
        **COMMON, original_max_position_embeddings=ORIGINAL_LEN, rope_parameters=LONGROPE
    )
    torch.manual_seed(2)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def logits(model: Any, count: int) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=torch.arange(count)[None] % 97).logits[0]
    return found


@pytest.mark.parametrize(("max_len", "count"), [(ORIGINAL_LEN, ORIGINAL_LEN), (100, 100)])
def test_sequences_on_the_side_of_the_longest_are_transformers_own(
    max_len: int, count: int
) -> None:
    model = phi3()
    expected = logits(model, count)
    settle_rotary(model, max_len)
    assert torch.equal(logits(model, count), expected)


def test_a_short_sequence_beside_long_ones_has_their_frequencies() -> None:
    """Its tokens' keys stay right when it has grown beyond the border."""
    model = phi3()
    short = logits(model, 20)
    settle_rotary(model, 100)
    settled = logits(model, 20)
    assert not torch.allclose(settled, short, atol=1e-4)
    assert torch.allclose(settled, logits(model, 100)[:20], atol=1e-5)


@pytest.mark.parametrize("beyond", [0, 1, 16])
def test_dynamic_frequencies_do_not_grow_while_positions_are_tabulated(beyond: int) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    config = LlamaConfig(**COMMON, rope_parameters=rope)
    model: Any = AutoModelForCausalLM.from_config(config)
    rotary = model.base_model.rotary_emb
    before = rotary.inv_freq.clone()
    settle_rotary(model, 512)
    rotary(torch.empty(0), torch.arange(512 + beyond)[None])
    assert torch.equal(rotary.inv_freq, before)


def test_others_are_left_alone(tmp_path: Path) -> None:
    model: Any = AutoModelForCausalLM.from_config(LlamaConfig(**COMMON))
    kind = model.base_model.rotary_emb.rope_type
    settle_rotary(model, 512)
    assert model.base_model.rotary_emb.rope_type == kind == "default"
