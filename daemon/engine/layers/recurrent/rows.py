"""The rows of a step as recurrent layers walk them: pieces of tokens that are computed at once."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from daemon.wire.columns import Int64

CHUNK_TOKENS = 64
"""Most tokens of a row that are computed at once: products grow with their square."""


@dataclass(frozen=True, slots=True)
class TokenRows:
    """B rows of T flattened tokens, each with tokens that follow on its sequence's state."""

    offsets: Int64  # [B] index of each row's first token
    counts: Int64  # [B]

    def pieces(
        self, device: torch.device, most: int = CHUNK_TOKENS
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Rows int64 [N] and their tokens int64 [N, L], each row's in order: all rows of a single
        token together, longer ones one by one in pieces of at most `most` tokens.
        """
        (single,) = (self.counts == 1).nonzero()
        if len(single):
            tokens = torch.from_numpy(self.offsets[single][:, None])
            yield torch.from_numpy(single).to(device), tokens.to(device)
        for row in (self.counts > 1).nonzero()[0].tolist():
            first, end = int(self.offsets[row]), int(self.offsets[row] + self.counts[row])
            for begin in range(first, end, most):
                tokens = torch.arange(begin, min(begin + most, end), device=device)
                yield torch.tensor([row], device=device), tokens.unsqueeze(0)

    def behind(self, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Indices into rows that each have `width` earlier tokens put in front of theirs: of those
        earlier tokens [B, width], of the T tokens [T], and of each row's last `width` [B, width].
        """
        shifts = np.arange(len(self.counts)) * width
        within = np.arange(width)
        earlier = (self.offsets + shifts)[:, None] + within
        tokens = np.arange(int(self.counts.sum())) + np.repeat(shifts + width, self.counts)
        last = earlier + self.counts[:, None]
        return torch.from_numpy(earlier), torch.from_numpy(tokens), torch.from_numpy(last)
