"""How far a kernel's numbers may be from torch's own."""

import torch

LIMITS = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""Limits of a row's distance from the expected one, over that one's length: several times what
rounding the result and the softmax's weights makes, and no more than a lost key among a hundred
does."""


class WrongError(Exception):
    """A kernel computed something else than torch; the message says what."""


def alike(what: str, found: torch.Tensor, expected: torch.Tensor, limit: float) -> None:
    """Raise WrongError unless every row (last dimension) of `found` is near that of `expected`."""
    if not found.numel():
        return
    lengths = expected.double().norm(dim=-1)
    away = (found.double() - expected.double()).norm(dim=-1)
    relative = (away / lengths.where(lengths > 0, 1.0)).nan_to_num(torch.inf, torch.inf)
    worst = float(relative.max())
    if worst > limit:
        row = int(relative.flatten().argmax())
        raise WrongError(f"{what}: row {row} of {relative.numel()} is {worst:.1e} off")


def equal(what: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    """Raise WrongError unless both hold the same bits."""
    differ = int((found != expected).sum())
    if differ:
        raise WrongError(f"{what}: {differ} of {found.numel()} numbers differ")


def untouched(what: str, found: torch.Tensor) -> None:
    """Raise WrongError unless all of it is NaN still."""
    if not bool(found.isnan().all()):
        raise WrongError(f"{what}: something was written that is nobody's")
