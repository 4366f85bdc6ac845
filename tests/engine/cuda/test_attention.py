"""The attention of GPU workers, its kernels run by Triton's interpreter."""

from tests.engine.interpreting import Interpreting

PROGRAM = """
import torch
from daemon.engine.cuda.attention import CudaAttention
from daemon.engine.layers.attention_torch import TorchAttention
from daemon.engine.kv.pool import PagedKV
from tests.engine.model.test_backends import batch_of

torch.manual_seed(0)
for starts, counts in (([0, 7, 30], [1, 1, 1]), ([0, 7, 8, 5], [1, 1, 4, 9]), ([3], [6])):
    caches = [PagedKV(32, 2, 8, 2, 16, torch.float32, torch.device("cpu")) for _ in range(2)]
    caches[0].blocks.normal_()
    caches[1].blocks.copy_(caches[0].blocks)
    batch = batch_of(starts, counts, 8)
    merged = torch.randn(len(batch.tokens), 8, 16)
    states = merged.split((4, 2, 2), 1)
    ours, theirs = CudaAttention.of(batch, caches[0]), TorchAttention(batch, caches[1])
    for layer in (1, 0):
        torch.testing.assert_close(ours(layer, *states, 0.3), theirs(layer, *states, 0.3))
    assert torch.equal(caches[0].blocks, caches[1].blocks)
print("equal")
"""


def test_decode_and_prefill_rows_mixed(interpreting: Interpreting) -> None:
    assert interpreting.output(PROGRAM) == "equal"
