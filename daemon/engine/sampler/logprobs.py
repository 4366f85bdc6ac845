"""Log-probabilities of the model's own distribution, before any processing."""

import numpy as np
import numpy.typing as npt
import torch

from daemon.engine.protocol import Logprobs
from daemon.engine.sampler.filters import best_tokens


def logprobs_of(
    logits: torch.Tensor, tokens: torch.Tensor, asked: npt.NDArray[np.int32]
) -> Logprobs | None:
    """What the rows with `asked` >= 0 [R] want to know of their raw logits [R, V]; None if none.

    The k of the answer is the most that any row asked for; a reader takes the first of them.
    """
    rows = np.flatnonzero(asked >= 0)
    if not len(rows):
        return None
    index = torch.from_numpy(rows).to(logits.device)
    some = logits[index].float()
    norm = some.logsumexp(-1, keepdim=True)
    chosen = some.gather(1, tokens[index].unsqueeze(1)) - norm
    width = min(int(asked.max()), logits.shape[1])
    values, ids = best_tokens(some, width)
    return Logprobs(
        rows=rows.astype(np.int32),
        chosen=_column(chosen, np.float32),
        top_ids=_column(ids, np.int32),
        top_values=_column(values - norm, np.float32),
    )


def _column(values: torch.Tensor, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    return values.flatten().cpu().numpy().astype(dtype)
