"""Rotary frequencies that a GGUF file scales by a tensor of factors, as a configuration says them.

llama.cpp stores what Llama 3.1 and later do to their frequencies as one factor for each; the
configuration that transformers reads of the file leaves it out.
"""

import copy
from typing import Any

import numpy as np
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from daemon.models.shape import ModelError

_TENSOR = "rope_freqs.weight"
_LLAMA_3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_FACTORS = (8.0, 32.0)
"""Of Llama 3.1 and 3.3, and of Llama 3.2."""


def scaled_rope(config: Any, tensors: Any) -> None:
    """Put the scaling of a file's frequencies into its configuration, where it has some.

    Raises ModelError for factors that are not those of a known kind of scaling.
    """
    found = [one for one in tensors if one.name == _TENSOR]
    if not found or np.all(found[0].data == 1):
        return
    factors = torch.from_numpy(np.array(found[0].data, np.float32))
    for factor in _FACTORS:
        tried = copy.deepcopy(config)
        plain = _frequencies(tried)
        tried.rope_parameters = {**config.rope_parameters, **_LLAMA_3, "factor": factor}
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](tried, "cpu")
        if len(scaled) == len(factors) and torch.allclose(plain / scaled, factors, rtol=1e-3):
            config.rope_parameters = tried.rope_parameters
            return
    raise ModelError(f"{_TENSOR} scales its rotary positions in a way that llmd does not know")


def _frequencies(config: Any) -> torch.Tensor:
    """The inverse frequencies [head_dim / 2] without any scaling."""
    theta = float(config.rope_parameters["rope_theta"])
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    return 1.0 / theta**steps
