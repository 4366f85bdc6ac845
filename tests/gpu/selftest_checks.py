"""The self-test of a card's first use, as a worker runs it, in the shapes of an 8B model."""

from collections.abc import Iterator

from benchmarks.gpu.report import Check
from daemon.engine.families import FAMILIES
from daemon.engine.verify.kernels.run import run
from daemon.engine.verify.kernels.subject import Subject
from daemon.models.formats import CPU_ONLY, FORMATS
from tests.gpu.state_checks import MODELS

_PRODUCTS = ((6144, 4096), (4096, 4096), (28_672, 4096), (4096, 14_336), (128_256, 4096))
_BLOCKS = tuple(
    (name, 4096, 4096)
    for name, form in FORMATS.items()
    if form.block_len > 1 and form.name not in CPU_ONLY
)


def selftest_checks(device: str) -> Iterator[Check]:
    """Families that torch would compute on this card: none should be."""
    subject = Subject(
        device=device,
        dtype="bfloat16",
        kv_dtype="",
        block_size=16,
        max_blocks=513,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        rotary_dim=128,
        head_norms=False,
        hidden=4096,
        gated=14_336,
        vocab=128_256,
        products=tuple((*sizes, False) for sizes in _PRODUCTS),
        quantised=_BLOCKS,
        experts=_BLOCKS,
        compress=True,
        most_rows=64,
        recurrent=tuple(MODELS.values()),
    )
    found = run(subject, lambda _family: None)
    for family in FAMILIES:
        why = found.faults.get(family, "")
        yield Check(f"self-test of {family}", int(bool(why)), 0, why)
