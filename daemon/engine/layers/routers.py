"""The choice of a token's experts, as blocks of transformers make it.

It is read off a block's tensors and fields, and then tried with random states, so that a block that
chooses, shares or adds up in any other way is not taken for one of these.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

_ROUTERS = {"gate", "router"}
"""Names of a router in its block."""
_SHARED = {"shared_expert", "shared_experts", "shared_mlp"}
"""Names of an MLP that every token takes."""
_SHARE = "shared_expert_gate"
"""Name of the layer whose output says how much of that MLP a token takes."""
CORRECTIONS = frozenset({"e_score_correction_bias", "expert_bias"})
"""Names of what is added to scores where they choose."""

_TRIED = 64
"""Random states with which a router is compared."""
_LEAST = 1e-20
"""The least divisor of shares."""
_ADDED = 1e-6
"""The number that LFM2's mixtures add to the divisor of shares."""
_FAINT = -11.0, -13.0
"""Logits whose scores show such an addition, and are far above the least divisor."""
_RIDGE = 1e-3
"""The share of rows' squares that keeps a state finite where rows are alike."""
_FROM_GROUP = 2
"""Experts whose scores make that of their group."""


@dataclass(frozen=True, slots=True)
class Router:
    """The choice of a token's experts: the k with the best scores, which are their shares."""

    weight: torch.Tensor  # [experts, width]
    num_chosen: int
    to_one: bool  # the shares of a token add up to 1, before `scale`
    bias: torch.Tensor | None = None  # [experts]
    sigmoid: bool = False  # scores are each expert's own; else a softmax over all
    correction: torch.Tensor | None = None  # [experts], added to scores where they choose
    groups: int = 1  # of neighbouring experts
    kept_groups: int = 1  # groups that a token chooses from
    scale: float = 1.0  # of all shares
    added: float = 0.0  # to the sum of a token's scores, by which its shares are divided

    def __call__(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Experts int64 [T, k] of `states` [T, width], the best first, and their shares."""
        logits = linear(states, self.weight, self.bias).float()
        scores = logits.sigmoid() if self.sigmoid else logits.softmax(-1)
        better = scores if self.correction is None else scores + self.correction
        chosen = self._in_groups(better).topk(self.num_chosen).indices
        shares = scores.gather(1, chosen)
        if self.to_one:
            together = shares.sum(-1, keepdim=True) + self.added
            shares = shares / together.clamp_min(_LEAST)
        return chosen, shares * self.scale

    def _in_groups(self, better: torch.Tensor) -> torch.Tensor:
        """Scores with which experts of other groups than the best are not chosen."""
        if self.groups == self.kept_groups:
            return better
        grouped = better.unflatten(1, (self.groups, -1))
        best = grouped.topk(_FROM_GROUP).values.sum(-1).topk(self.kept_groups).indices
        left_out = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(1, best, False)
        return grouped.masked_fill(left_out.unsqueeze(2), -torch.inf).flatten(1)


def is_mixture(block: Any) -> bool:
    """Whether a module has a router and experts, perhaps with others beside them."""
    names = _children(block)
    return "experts" in names and bool(names & _ROUTERS)


def shared_of(block: Any) -> tuple[Any, Any]:
    """A block's MLP that every token takes, and the layer of its share; None for what it lacks."""
    names = [name for name in _SHARED & _children(block) if getattr(block, name) is not None]
    return (getattr(block, names[0]) if names else None), getattr(block, _SHARE, None)


def router_of(block: Any) -> Router | None:
    """The router of a mixture; None where a test shows that it chooses in another way, or adds up
    something else than its experts and what `shared_of` tells.
    """
    names = _children(block) - {"experts", _SHARE} - _SHARED
    if len(names) != 1 or not names <= _ROUTERS:
        return None
    gate = getattr(block, names.pop())
    if not isinstance(getattr(gate, "top_k", None), int):
        return None
    with torch.inference_mode():
        for router in _candidates(block, gate):
            if _same(block, gate, router):
                return router
    return None


def _children(block: Any) -> set[str]:
    return {name for name, _child in block.named_children()}


def _candidates(block: Any, gate: Any) -> Iterator[Router]:
    """The routers that a block may have by its tensors and fields."""
    held = dict((*gate.named_parameters(), *gate.named_buffers()))
    own = dict((*block.named_parameters(recurse=False), *block.named_buffers(recurse=False)))
    corrections = [
        tensors.pop(name)
        for tensors in (held, own)
        for name in list(tensors)
        if name.rpartition(".")[2] in CORRECTIONS
    ]
    if own or not held.keys() <= {"weight", "bias"} or "weight" not in held:
        return
    correction = corrections[0].view(-1).float() if corrections else None
    weight, count = held["weight"], len(held["weight"])
    groups = getattr(gate, "num_group", None) or getattr(block, "n_group", None) or 1
    kept = getattr(gate, "topk_group", None) or getattr(block, "topk_group", None) or groups
    scale = float(getattr(gate, "routed_scaling_factor", None) or 1.0)
    if len(corrections) > 1 or count % groups or not 1 <= kept <= groups:
        return
    if kept < groups and count // groups < _FROM_GROUP:
        return
    is_to_one = getattr(gate, "norm_topk_prob", None)
    sums = (True, False) if is_to_one is None else (bool(is_to_one),)
    scales = tuple(dict.fromkeys((scale, 1.0)))
    for sigmoid, scaled, added, to_one in product((False, True), scales, (0.0, _ADDED), sums):
        begun = weight, gate.top_k, to_one, held.get("bias")
        yield Router(*begun, sigmoid, correction, groups, kept, scaled, added)


def _same(block: Any, gate: nn.Module, router: Router) -> bool:
    """Whether a block of transformers chooses as a router does, in the same shares, and adds up
    its experts and the MLP beside them.
    """
    states = _probes(router.weight)
    apart = CORRECTIONS & {name for name, _ in block.named_buffers(recurse=False)}
    taken = [states, router.correction] if apart else [states]
    try:
        said = gate(*taken)
        whole = _with_shown(block)(states.unsqueeze(0))
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return False  # it takes something else
    chosen, shares = router(states)
    if not isinstance(said, tuple) or len(said) != 3 or said[1].shape != shares.shape:
        return False
    order, other = chosen.sort(), said[2].sort()
    shares, theirs = shares.gather(1, order.indices), said[1].float().gather(1, other.indices)
    if not torch.equal(order.values, other.values) or not torch.allclose(theirs, shares, rtol=1e-3):
        return False
    expected = _Shown()(states.float(), chosen, router(states)[1])
    shared, share = shared_of(block)
    if shared is not None:
        beside = _Shown()(states.float())
        expected = expected + (
            beside if share is None else share(states).float().sigmoid() * beside
        )
    whole = whole[0] if isinstance(whole, tuple) else whole
    return torch.allclose(whole.view(states.shape).float(), expected, rtol=1e-3, atol=1e-4)


def _probes(weight: torch.Tensor) -> torch.Tensor:
    """Random states [T, width], of which the first one's logits are nearly all faint, however
    alike the rows of `weight` are.
    """
    states = torch.randn(_TRIED, weight.shape[1], generator=torch.Generator().manual_seed(0))
    states = states.to(weight) * (4 / weight.float().std().clamp_min(1e-6) / weight.shape[1] ** 0.5)
    rows = weight.detach().cpu().double()
    squares = rows @ rows.T
    squares += _RIDGE * squares.diagonal().mean().clamp_min(1e-6) * torch.eye(len(rows)).double()
    wanted = torch.linspace(*_FAINT, len(rows)).double()
    states[0] = (rows.T @ torch.linalg.solve(squares, wanted)).to(states)
    return states


class _Shown(nn.Module):
    """A stand-in for experts, or for an MLP, whose result shows how a block takes them."""

    def forward(
        self,
        states: torch.Tensor,
        chosen: torch.Tensor | None = None,
        shares: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The states times what their shares are worth, or three times themselves."""
        if chosen is None or shares is None:
            return 3 * states
        return states * (shares * (1 + chosen)).sum(-1, keepdim=True).to(states.dtype)


def _with_shown(block: Any) -> Any:
    """A block like another, whose experts and MLP are quick."""
    twin = copy.copy(block)
    twin._modules = {
        name: _Shown() if name in {"experts", *_SHARED} and child is not None else child
        for name, child in block._modules.items()
    }
    return twin
