"""Makes a variant's model folder: random weights in which every parameter counts."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from tests.zoo.own import DROP
from tests.zoo.sizes import VOCAB_SIZE, tiny_args
from tests.zoo.variant import Variant

MOST_PARAMS = 3_000_000
_GAIN = 1.5
"""The scale of matrices: attention is neither even nor on one token alone."""
_SPREAD = 0.3
"""The scale of norms, biases and scalars around their initial values."""


class TooLargeError(Exception):
    """A configuration that tiny sizes do not make tiny."""


def config_dict(variant: Variant) -> dict[str, Any]:
    """The content of the variant's config.json."""
    cls: Any = CONFIG_MAPPING[variant.model_type]
    config = cls(**edited(tiny_args(variant.model_type), variant.args))
    told: dict[str, Any] = json.loads(config.to_json_string(use_diff=True))
    told.pop("architectures", None)
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    told |= {"architectures": [model.__name__], "dtype": variant.dtype}
    return edited(told, variant.raw)


def edited(told: dict[str, Any], edits: dict[str, Any]) -> dict[str, Any]:
    """A config.json with other values of some keys."""
    both = {**told, **edits}
    return {key: value for key, value in both.items() if value is not DROP}


def build(variant: Variant, folder: Path) -> None:
    """Write the variant as a folder that the daemon may serve. Raises what transformers raises."""
    told = config_dict(variant)
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    write_config(folder, told)
    config = AutoConfig.from_pretrained(folder)
    model = _random(config, variant)
    limit = "100KB" if variant.sharded else "5GB"
    model.save_pretrained(folder, max_shard_size=limit)
    write_config(folder, told)


def build_stand_in(variant: Variant, folder: Path) -> None:
    """The variant's configuration beside weights of no model: what is refused needs no more."""
    told = config_dict(variant)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    write_config(folder, told)
    save_file({"a": torch.zeros(64, VOCAB_SIZE)}, folder / "model.safetensors")


def write_config(folder: Path, told: dict[str, Any]) -> None:
    """Write a folder's config.json."""
    (folder / "config.json").write_text(json.dumps(told, indent=1))


def _random(config: Any, variant: Variant) -> Any:
    cls: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with torch.device("meta"):
        count = sum(one.numel() for one in cls(config).parameters())
    if count > MOST_PARAMS:
        raise TooLargeError(f"{count:,} parameters")
    torch.manual_seed(sum(map(ord, variant.label)))
    model = cls._from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        randomise(model)
    return model.to(getattr(torch, variant.dtype))


def randomise(model: Any) -> None:
    """Give every parameter, and every buffer that is stored, a value that changes logits."""
    tables = {id(one.weight) for one in model.modules() if isinstance(one, nn.Embedding)}
    parameters = dict(model.named_parameters())
    for parameter in parameters.values():
        if parameter.ndim < 2:
            parameter.add_(torch.randn_like(parameter), alpha=_SPREAD)
        else:
            width = 1.0 if id(parameter) in tables else parameter.shape[-1]
            parameter.normal_(0.0, _GAIN / width**0.5)
    for name, tensor in model.state_dict().items():
        if name not in parameters and tensor.is_floating_point():
            tensor.add_(torch.randn_like(tensor), alpha=_SPREAD)
