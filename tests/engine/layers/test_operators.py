"""Operators of a decoder alone: together they are those of a step."""

from collections import Counter
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from daemon.engine.layers.attention import FULL, AttentionVariant
from daemon.engine.layers.fuse import fuse
from daemon.engine.layers.operators import operators_alone
from daemon.engine.layers.ops import Norm, Ops


class CountingOps(Ops):
    """Counts norms of heads and turns."""

    def __init__(self) -> None:
        self.counted = Counter[str]()

    def norm_heads(self, states: torch.Tensor, norm: Norm) -> None:
        """See `Ops`."""
        self.counted["norm_heads"] += 1
        super().norm_heads(states, norm)

    def rotate(self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """See `Ops`."""
        self.counted["rotate"] += 1
        super().rotate(states, cos, sin)


def attended(
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    variant: AttentionVariant = FULL,
) -> torch.Tensor:
    return query


def test_norms_of_heads_are_among_them() -> None:
    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=30,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    loader: Any = AutoModelForCausalLM
    ops, tokens = CountingOps(), torch.arange(4)
    with torch.inference_mode():
        decoder = fuse(loader.from_config(config).float(), ops, lambda layer: layer, 64)
        assert decoder is not None
        decoder.rows(tokens, tokens, tokens, attended)
        of_a_step = ops.counted.copy()
        operators = operators_alone(decoder, tokens, tokens, 1, attended)
        ops.counted.clear()
        for run in operators.values():
            run()
    assert ops.counted == of_a_step
