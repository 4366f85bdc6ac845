"""What an embedding's rows are multiplied by, in the type that states have."""

import torch

from daemon.engine.layers.embeddings import PlainEmbeddings


def test_a_scale_is_rounded_as_the_rows_are_and_a_factor_is_not() -> None:
    """As Gemma's, whose scale is a tensor, and Granite's, whose multiplier is a number."""
    weight, tokens = torch.randn(5, 8).bfloat16(), torch.tensor([3, 1])
    number = 12 / 0.22  # 54.5 in bfloat16
    rounded = torch.tensor(number, dtype=torch.bfloat16)
    assert torch.equal(PlainEmbeddings(weight, number)(tokens), weight[tokens] * rounded)
    whole = PlainEmbeddings(weight, factor=number)(tokens)
    assert torch.equal(whole, weight[tokens] * number)
    assert not torch.equal(whole, weight[tokens] * rounded)
