"""RMS norms, read off transformers' modules: each is tried, whatever its class is called."""

from typing import Any

import torch

from daemon.engine.layers.ops import Norm

_CLOSE = 0.02
"""How far roundings may lead."""


def is_norm(module: Any) -> bool:
    """Whether a module is an RMS norm: it has a weight, an epsilon and no bias."""
    names = {name for name, _parameter in module.named_parameters()}
    return names == {"weight"} and _epsilon(module) is not None and _tried(module) is not None


def is_bare_norm(module: Any, width: int) -> bool:
    """Whether a module is an RMS norm of so many numbers that has no weight."""
    if list(module.parameters()) or _epsilon(module) is None:
        return False
    states = torch.linspace(-2, 3, width)
    with torch.inference_mode():
        expected = bare_norm(module, states)(states)
        return torch.allclose(module(states), expected, rtol=_CLOSE, atol=_CLOSE)


def bare_norm(module: Any, like: torch.Tensor) -> Norm:
    """The norm that a module without a weight is, of numbers `like` [width]."""
    epsilon = _epsilon(module)
    assert epsilon is not None, "recognised"
    return Norm(torch.ones_like(like), epsilon)


def norm_of(module: Any) -> Norm:
    """The norm that a module is."""
    found = _tried(module)
    assert found is not None, "recognised"
    return found


def scaled_norm(norm: Norm, scale: float) -> Norm:
    """A norm whose results are `scale` times as large."""
    return norm if scale == 1.0 else Norm(norm.weight.float() * scale, norm.epsilon)


def _epsilon(module: Any) -> float | None:
    found: float | None = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return found


def _tried(module: Any) -> Norm | None:
    """An RMS norm whose factors are the module's weight, or 1 more; None where it is neither."""
    weight, epsilon = module.weight, _epsilon(module)
    assert epsilon is not None
    if weight.is_meta:  # no numbers yet to try it with
        return Norm(weight, epsilon)
    states = torch.linspace(-2, 3, len(weight), device=weight.device).to(weight.dtype)
    with torch.inference_mode():
        found = module(states.unsqueeze(0))[0].float()
        for norm in (Norm(weight, epsilon), Norm(1 + weight.float(), epsilon)):
            expected = norm(states).float()
            if torch.allclose(found, expected, rtol=_CLOSE, atol=_CLOSE):
                return norm
    return None
