"""Log-probabilities of the model's own distribution, before any processing."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from daemon.engine.batch.download import download
from daemon.engine.batch.upload import upload
from daemon.engine.sampler.filters import best_tokens
from daemon.protocol.worker import Logprobs


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities on their way to the host."""

    rows: npt.NDArray[np.int32]  # [P]
    chosen: torch.Tensor  # float32 [P, 1]
    top_ids: torch.Tensor  # int64 [P, k]
    top_values: torch.Tensor  # float32 [P, k]

    def read(self) -> Logprobs:
        """Read them on the host, once the device is done."""
        return Logprobs(
            rows=self.rows,
            chosen=self.chosen.numpy().ravel(),
            top_ids=self.top_ids.numpy().ravel().astype(np.int32),
            top_values=self.top_values.numpy().ravel(),
        )


def logprobs_of(
    logits: torch.Tensor, tokens: torch.Tensor, asked: npt.NDArray[np.int32]
) -> Scores | None:
    """Logprobs of the rows with `asked` >= 0 [R], of their raw logits [R, V]; None if none.

    The k of the answer is the most that any row asked for; a reader takes the first of them.
    Nothing waits for the device.
    """
    rows = np.flatnonzero(asked >= 0)
    if not len(rows):
        return None
    if len(rows) < len(logits):
        index = upload(rows, logits.device)
        logits, tokens = logits[index], tokens[index]
    logits = logits.float()
    norm = logits.logsumexp(-1, keepdim=True)
    values, ids = best_tokens(logits, min(int(asked.max()), logits.shape[1]))
    return Scores(
        rows=rows.astype(np.int32),
        chosen=download(logits.gather(1, tokens.unsqueeze(1)) - norm),
        top_ids=download(ids),
        top_values=download(values - norm),
    )
