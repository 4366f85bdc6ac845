"""How a GGUF file scales its rotary positions, as transformers' configuration says it.

By fields: `rope.scaling.*`, or `rope.scale_linear` in older files; llama.cpp computes YaRN with the
same frequencies as transformers. By a tensor of factors: what Llama 3.1 and later do to their
frequencies, as one factor for each.
"""

import copy
import math
from typing import Any

import numpy as np
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from daemon.models.shape import ModelError

FACTORS = "rope_freqs.weight"
BY_LENGTH = {"rope_factors_long.weight": "long_factor", "rope_factors_short.weight": "short_factor"}
"""Tensors of factors for long and for short sequences, by their names in a configuration."""
_OLD = "rope.scale_linear"
_LLAMA_3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA_3_FACTORS = ((8.0, 4.0), (32.0, 4.0), (16.0, 1.0))
"""Factors, and those of high frequencies, of Llama 3.1, 3.3 and 4, of Llama 3.2, and of Llama 4
Scout.
"""
_STILL = 1e29
"""A divisor of frequencies with which a file says that numbers do not turn is larger."""
_SAYS_NOTHING = ("rope.scaling.finetuned",)
_YARN = {
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
_DIGITS = 6
"""Those of a float32 that a file's writer multiplied."""
_MAGNITUDES = ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor")


def rope_parameters(config: Any) -> dict[str, dict[str, Any]]:
    """A configuration's own parameters, by kinds of layers; of one kind for all by the name "".

    Empty for a model without rotary positions.
    """
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict) or not parameters:
        return {}
    nested = {kind: value for kind, value in parameters.items() if isinstance(value, dict)}
    return nested or {"": parameters}


def put_scaling(
    begin: str,
    parameters: dict[str, Any],
    fields: dict[str, Any],
    context_len: int,
    by_length: bool = False,
) -> set[str]:
    """Put what `rope.scaling.*` fields say into parameters of rotary positions; the fields' names.

    `begin`: of the fields' whole names; `by_length`: whether the file has factors for long and for
    short sequences. Raises ModelError for what transformers does not compute.
    """
    kind = fields.get("rope.scaling.type", "linear")
    factor = float(fields.get("rope.scaling.factor", fields.get(_OLD, 0)) or 1)
    left = set(fields) - {"rope.scaling.type", "rope.scaling.factor", _OLD, *_SAYS_NOTHING}
    if kind not in ("none", "linear", "yarn"):
        raise ModelError(
            f"{begin}rope.scaling.type is {kind!r}: such positions depend on the context's length, "
            "or are of an unknown kind"
        )
    if factor <= 0 or not math.isfinite(factor):
        raise ModelError(f"{begin}rope.scaling.factor is {factor}")
    left.discard("rope.scaling.original_context_length")
    magnitude = math.prod(float(fields.get(name, 1) or 1) for name in _MAGNITUDES)
    left -= set(_MAGNITUDES)
    original = int(fields.get("rope.scaling.original_context_length") or context_len)
    if by_length:
        if factor != 1:
            raise ModelError(f"{begin}rope.scaling.factor is {factor}, beside factors by length")
        parameters |= {
            "rope_type": "longrope",
            "original_max_position_embeddings": original,
            "attention_factor": magnitude,
        }
    elif kind == "yarn" and factor != 1:
        divisor, scaling_scores = _multiplied(begin, float(fields.get(_LOG_MULTIPLIER, 0)), factor)
        magnitude /= divisor
        if divisor != 1 or scaling_scores:
            left.discard(_LOG_MULTIPLIER)
        parameters |= scaling_scores
        parameters |= {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
            "attention_factor": magnitude * (0.1 * math.log(factor) + 1 if factor > 1 else 1),
        }
        parameters |= {key: float(fields[name]) for name, key in _YARN.items() if fields.get(name)}
        left -= set(_YARN)
        left -= {name for name in left if name.endswith("yarn_ext_factor") and fields[name] == 1}
    else:
        if magnitude != 1:
            raise ModelError(f"{begin}{_MAGNITUDES[0]} is {magnitude}, and positions are {kind}")
        if kind == "linear" and factor != 1:
            parameters |= {"rope_type": "linear", "factor": factor}
        left -= set(_YARN)
    for name in sorted(left):
        if fields[name]:
            raise ModelError(f"{begin}{name} is {fields[name]!r}, which transformers does not have")
    return set(fields)


def _multiplied(begin: str, multiplier: float, factor: float) -> tuple[float, dict[str, float]]:
    """The divisor of magnitudes that a log multiplier means, and parameters that scale scores."""
    if not multiplier:
        return 1.0, {}
    if begin == "mistral3.":
        return 0.1 * multiplier * math.log(factor) + 1, {}
    if begin != "deepseek2.":
        return 1.0, {}
    # A tenth of what scales scores; positions are scaled by as much, and back.
    own = round(multiplier / 0.1, _DIGITS)
    divisor = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return divisor, {"mscale": own, "mscale_all_dim": own}


def scaled_rope(config: Any, tensors: Any) -> None:
    """Put the scaling of a file's frequencies by a tensor into its configuration, if it has some.

    Raises ModelError for factors that are not those of a known kind of scaling.
    """
    by_length = {tensor.name: tensor.data for tensor in tensors if tensor.name in BY_LENGTH}
    for name, parameter in BY_LENGTH.items() if by_length else ():
        if name not in by_length:
            raise ModelError(f"the tensor {name} is missing beside {next(iter(by_length))}")
        config.rope_parameters[parameter] = [float(number) for number in by_length[name]]
    found = [tensor for tensor in tensors if tensor.name == FACTORS]
    if not found or np.all(found[0].data == 1):
        return
    unknown = f"{FACTORS} scales its rotary positions in a way that llmd does not know"
    kinds = rope_parameters(config)
    if "full_attention" in kinds and _put_share(config, found[0].data):
        return
    if "" not in kinds:
        raise ModelError(unknown)  # none, or each kind of layer has its own
    if config.rope_parameters.get("rope_type", "default") != "default":
        raise ModelError(f"{FACTORS} scales rotary positions that fields scale already")
    factors = torch.from_numpy(np.array(found[0].data, np.float32))
    for factor, high in _LLAMA_3_FACTORS:
        tried = copy.deepcopy(config)
        plain = _frequencies(tried)
        own = {**_LLAMA_3, "factor": factor, "high_freq_factor": high}
        tried.rope_parameters = {**config.rope_parameters, **own}
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](tried, "cpu")
        if len(scaled) == len(factors) and torch.allclose(plain / scaled, factors, rtol=1e-3):
            config.rope_parameters = tried.rope_parameters
            return
    raise ModelError(unknown)


def _put_share(config: Any, factors: Any) -> bool:
    """Put into a configuration which share of a head turns in layers that see all, where there is a
    factor for each pair of a head that says it: 1 where it does, and otherwise so much that nothing
    turns. Whether they do.
    """
    turning = int(np.count_nonzero(factors == 1))
    if not np.all(factors[:turning] == 1) or not np.all(factors[turning:] >= _STILL):
        return False
    tried = copy.deepcopy(config)
    tried.rope_parameters["full_attention"] |= {
        "rope_type": "proportional",
        "partial_rotary_factor": turning / len(factors),
    }
    made, _ = ROPE_INIT_FUNCTIONS["proportional"](tried, "cpu", layer_type="full_attention")
    if len(made) != len(factors) or int(made.count_nonzero()) != turning:
        return False
    config.rope_parameters = tried.rope_parameters
    return True


def _frequencies(config: Any) -> torch.Tensor:
    """The inverse frequencies [head_dim / 2] without any scaling."""
    theta = float(config.rope_parameters["rope_theta"])
    each = config.hidden_size // config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or each
    steps = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return 1.0 / theta**steps
