"""Keys and values as 8-bit numbers, in plain torch: what an 8-bit KV cache holds.

One scale for each token and KV head, over the numbers of the head:

    scale = max |x| / LARGEST, at least SMALLEST_SCALE          stored = round(x / scale)

So a stored number times its scale is the value, wrong by at most scale / 2 in int8, and by 1 part
in 16 of itself in fp8 (e4m3: three bits of mantissa). Where a value is no number, or infinite, the
scale is NaN: nothing that is wrong comes back as a number. `daemon.engine.cuda.triton.quantise`
does the same, bit by bit.
"""

import torch

from daemon.memory.sizing import FP8_CAPABILITY

INT8, FP8 = torch.int8, torch.float8_e4m3fn
LARGEST = {INT8: 127.0, FP8: 448.0}
"""The largest number of each stored type."""
SMALLEST_SCALE = 2.0**-24
KV_DTYPES = {"": None, "int8": INT8, "fp8": FP8}
"""torch's types by the names that a `Load` has for them; "": no 8-bit cache."""


def quantise(values: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """`values` [..., head_dim] as `dtype` (a key of `LARGEST`), and their scales float32 [...]."""
    values = values.float()
    largest = values.abs().amax(-1)
    # By a tensor: CUDA divides by a plain number as if multiplying by its rounded reciprocal.
    scales = (largest / torch.full_like(largest, LARGEST[dtype])).clamp_(min=SMALLEST_SCALE)
    scales += (values - values).sum(-1)
    ratios = values / scales.unsqueeze(-1)
    return (ratios.round_() if dtype == INT8 else ratios).to(dtype), scales


def kv_fault(kv_dtype: torch.dtype | None, device: torch.device) -> str:
    """Why a device cannot hold its KV cache so; empty where it can."""
    if kv_dtype != FP8 or device.type != "cuda":
        return ""
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) >= FP8_CAPABILITY:
        return ""
    least = ".".join(map(str, FP8_CAPABILITY))
    return (
        f"an fp8 KV cache needs a GPU of compute capability {least} or higher, and {device} has "
        f'{major}.{minor}: use memory.kv_dtype = "int8"'
    )
