"""Attention to latent rows by a kernel, against torch; whatever may not be read is NaN."""

from tests.engine.interpreting import Interpreting

PROGRAM = """
import msgspec, torch
from daemon.engine.cuda.latent import row_attention
from daemon.engine.families import NONE
from daemon.engine.verify.kernels import attention_cases
from daemon.engine.verify.kernels.bench import Bench
from tests.engine.layers import test_latent as cases
from tests.engine.verify.kernels.subject import SUBJECT

latent = {"num_kv_heads": 1, "latent": 24, "head_dim": 32, "max_blocks": 20, "longest": 150}
for heads, dtype in ((3, "float32"), (20, "float32"), (16, "bfloat16")):
    kinds = {"num_heads": heads, "dtype": dtype}
    bench = Bench(msgspec.structs.replace(SUBJECT, **latent, **kinds))
    attention_cases.try_decode(bench)
attend = lambda batch, cache: row_attention(batch, cache, NONE)
torch.manual_seed(1)
outputs, queries, rows = cases.attended(attend, cases.pool(), [60, 9, 33], [1, 7, 40])
for output, query, row in zip(outputs, queries, rows, strict=True):
    expected = cases.plainly(cases.projection(), query, row)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
print("equal")
"""


def test_rows_are_attended_to_as_torch_does(interpreting: Interpreting) -> None:
    assert interpreting.output(PROGRAM) == "equal"
