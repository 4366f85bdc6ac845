"""The times of a warm worker's steps: measured at a first start, and kept for later ones.

On a CPU measuring costs as much as some twenty steps over all weights, which is longer than reading
them. What is kept is only what the Core plans with until it has seen steps of its own.
"""

import hashlib

import msgspec
import torch

from daemon.base.kept import KeptResults
from daemon.config.paths import cache_of
from daemon.engine.model.backend import Backend
from daemon.engine.verify.model import kept
from daemon.protocol.worker import Load


class WarmTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of a step, and how many tokens fill one."""

    step_s: float  # of one decode
    token_s: float  # that a prompt token more adds
    row_s: float = 0.0  # that a decoded token more adds; 0: it is not measured
    forward_tokens: int = 0  # the target forward size; 0: it is not measured


class KeptTimes:
    """The times of an equal worker's earlier start, where there are any."""

    def __init__(self, model: object, load: Load, backend: Backend) -> None:
        """`model`: transformers', before it is tried.

        Nothing is kept for a GPU, where measuring also prepares kernels for sizes, nor for ranks,
        which must take the same steps.
        """
        self._results = KeptResults(cache_of(load.cache) / "warm-up", WarmTimes)
        self._key = ""
        if load.device == "cpu" and backend.ranks is None:
            trial = kept.key_of(model, load, backend.name, ())
            rest = torch.get_num_threads(), load.max_batch_tokens, load.finds_size
            self._key = hashlib.blake2b(repr((trial, rest)).encode(), digest_size=16).hexdigest()

    def read(self) -> WarmTimes | None:
        """The times; None where they are to be measured."""
        return self._results.read(self._key) if self._key else None

    def keep(self, times: WarmTimes) -> None:
        """Write the times for the next start."""
        if self._key:
            self._results.keep(self._key, times)
