"""Numbers of quantised weights on a GPU: of all of a weight, or of rows that are looked up."""

import torch

from daemon.engine.cuda.triton.blocks import unpack_rows
from daemon.engine.quantised import unpack as plain
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.models.formats import CPU_ONLY, WeightFormat


def can_read(weight: QuantisedWeight) -> bool:
    """Whether kernels read a weight: it is dense, and has blocks that they know."""
    form = weight.format
    return form.block_len > 1 and form.name not in CPU_ONLY and weight.data.is_contiguous()


def unpack(form: WeightFormat, data: torch.Tensor) -> torch.Tensor:
    """As `daemon.engine.quantised.unpack.unpack`, by our kernel where it can."""
    if form.block_len == 1 or form.name in CPU_ONLY or not data.is_contiguous():
        return plain.unpack(form, data)
    columns = data.shape[1] // form.block_bytes * form.block_len
    out = torch.empty(len(data), columns, dtype=torch.float32, device=data.device)
    return unpack_rows(form, data, out)


def look_up(weight: QuantisedWeight, tokens: torch.Tensor) -> torch.Tensor:
    """float32 [T, K]: the rows of `tokens` int [T] of a weight that `can_read`, in its order."""
    shape = len(tokens), weight.columns
    out = torch.empty(shape, dtype=torch.float32, device=weight.data.device)
    return unpack_rows(weight.format, weight.data, out, tokens)
