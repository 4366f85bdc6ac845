"""Outlines of models are made without drawing numbers for their weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import LlamaForCausalLM

from daemon.engine.quantised.place import claimed, outline
from tests.engine.tiny import CONFIGS


class _Called(TorchFunctionMode):
    """The names of torch's functions that are called meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    def __torch_function__(
        self,
        function: Callable[..., Any],
        _types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.names.add(function.__name__)
        return function(*args, **(kwargs or {}))


def test_no_numbers_are_drawn_for_an_outline() -> None:
    config = CONFIGS["llama"]
    with _Called() as plain, torch.device("meta"):
        LlamaForCausalLM(config)
    with _Called() as called:
        model = outline(LlamaForCausalLM, config)
        claimed(LlamaForCausalLM, config, ("model.embed_tokens.weight",))
    drawn = {"normal_", "uniform_", "kaiming_uniform_"}
    assert plain.names & drawn and not called.names & drawn
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
