"""Kernels of states through Triton's interpreter: what torch computes, and nothing of padding."""

from tests.engine.interpreting import Interpreting

PROGRAM = """
import random
import torch
from daemon.engine.cuda.recurrence import MakeCudaRecurrence
from daemon.engine.layers.recurrent.recurrence import TorchRecurrence
from tests.engine.layers.recurrent.steps import LAYERS, NUM_SLOTS, walked
from tests.soak import tries

chance = random.Random(3)
for name, layer in LAYERS.items():
    for example in range(tries(1, 30)):
        first = [1, 3, 0, 18]  # one alone, a chunk, one that comes later, and more than a tile
        steps = [first, *([chance.choice([0, 1, 1, 2]) for _ in first] for _ in range(2))]
        steps += [[2, 1, 1, 1]] if not example else []
        ours = walked(layer, MakeCudaRecurrence(), steps)
        theirs = walked(layer, TorchRecurrence, steps)
        for one, other in zip(ours, theirs, strict=True):
            away = float((one - other).abs().max())
            assert away <= 1e-5 * float(other.abs().max()), (name, steps, away)
print("equal")
"""

PADDED = """
import torch
from daemon.engine.cuda.recurrence import MakeCudaRecurrence
from daemon.engine.cuda.triton import DeviceStateRows
from tests.engine.layers.recurrent.steps import LAYERS, pool_of, step_of

def computed(layer, padded):
    pool, chance = pool_of(layer.parts), torch.Generator().manual_seed(7)
    step = step_of(pool, [(2, 0, 1), (0, 0, 1)])
    if not padded:
        return layer.compute(MakeCudaRecurrence()(step, pool), 4, chance)[::2], pool.raw
    pages = torch.full((4, pool.state_pages), 1 << 30, dtype=torch.int32)  # nowhere at all
    pages[::2] = torch.from_numpy(step.state_pages)
    starts, counts = torch.tensor([0, 9, 0, 0]).int(), torch.tensor([1, 0, 1, 0]).int()
    rows = DeviceStateRows(pool.raw, pages, starts, torch.arange(4).int(), counts)
    return layer.compute(MakeCudaRecurrence().over(rows, pool), 4, chance)[::2], pool.raw

for name, layer in LAYERS.items():
    # Alone, the rows have the tokens 0 and 1; padded, 0 and 2: so only states and 0 are compared.
    (alone, _), (output, raw) = computed(layer, False), computed(layer, True)
    assert torch.equal(alone[0], output[0]) and output.isfinite().all(), name
    used = set(step_of(pool_of(layer.parts), [(2, 0, 1), (0, 0, 1)]).state_pages.ravel().tolist())
    others = [page for page in range(len(raw)) if page not in used]
    assert (raw[others] == 0xFF).all(), name
print("equal")
"""


def test_kernels_compute_what_torch_does(interpreting: Interpreting) -> None:
    assert interpreting.output(PROGRAM) == "equal"


def test_padding_neither_reads_nor_writes(interpreting: Interpreting) -> None:
    assert interpreting.output(PADDED) == "equal"
