"""Attention in plain torch: scores that lie in memory are those of some queries alone."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from daemon.engine.layers.attention import AttentionVariant
from daemon.engine.layers.attention_torch import _attend_tile, attend_causally

HEADS, KEY_HEADS, COUNT, BEFORE, HEAD_DIM = 4, 2, 700, 40, 8
VARIANTS = {
    "sinks": AttentionVariant(sinks=torch.linspace(-1.0, 2.0, HEADS)),
    "cap": AttentionVariant(cap=5.0),
    "cap and window": AttentionVariant(cap=5.0, window=500),
}


class _Largest(TorchDispatchMode):  # type: ignore[misc]
    """The elements of the largest tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.elements = max(self.elements, made.untyped_storage().nbytes() // 4)
        return made


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_scores_of_a_long_prompt_are_never_all_in_memory(variant: AttentionVariant) -> None:
    chance = torch.Generator().manual_seed(5)
    query = torch.randn(COUNT, HEADS, HEAD_DIM, generator=chance)
    keys, values = (
        torch.randn(BEFORE + COUNT, KEY_HEADS, HEAD_DIM, generator=chance) for _ in range(2)
    )
    arguments = query, keys, values, BEFORE, HEAD_DIM**-0.5, variant
    with _Largest() as largest:
        attended = attend_causally(*arguments)
    torch.testing.assert_close(attended, _attend_tile(*arguments))
    assert largest.elements <= HEADS * 128 * (BEFORE + COUNT + 1)
