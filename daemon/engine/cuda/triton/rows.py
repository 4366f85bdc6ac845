"""How rows of states lie in memory."""

import torch


def row_stride(states: torch.Tensor) -> int:
    """Numbers from one row [..., W] of `states` [T, ...] to the next.

    It is compiled into a kernel, so that rows which lie evenly are read in the widest loads. A
    single row's stride in torch is anything: its size is taken, lest one token compile anew.
    Raises ValueError if the numbers of a row do not lie together.
    """
    if not states[:1].is_contiguous():
        raise ValueError("the numbers of a row of states must lie together")
    return states.stride(0) if states.shape[0] > 1 else states[0].numel()
