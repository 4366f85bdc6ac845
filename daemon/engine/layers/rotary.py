"""The angles of rotary positions, computed once for every position that is served."""

from collections.abc import Callable

import torch

from daemon.engine.layers.ops import Angles


class RotaryTable:
    """Cosine and sine float32 [position, rotary_dim], as transformers' own module makes them."""

    def __init__(
        self,
        rotary: Callable[..., tuple[torch.Tensor, torch.Tensor]],
        num_positions: int,
        device: torch.device,
    ) -> None:
        positions = torch.arange(num_positions, device=device).unsqueeze(0)
        # The module rounds to the type of the states that it is given.
        like = torch.empty(0, dtype=torch.float32, device=device)
        self._cos, self._sin = (part[0].contiguous() for part in rotary(like, positions))

    @property
    def tables(self) -> Angles:
        """The angles of every position."""
        return self._cos, self._sin

    def angles(self, positions: torch.Tensor) -> Angles:
        """Angles of tokens at `positions` int64 [T]."""
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)

    def fill(self, angles: Angles, positions: torch.Tensor) -> None:
        """Overwrite `angles` with those of tokens at `positions` int64 [T]."""
        for table, part in zip((self._cos, self._sin), angles, strict=True):
            torch.index_select(table, 0, positions, out=part)
