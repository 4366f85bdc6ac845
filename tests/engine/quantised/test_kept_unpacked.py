"""What a trial unpacks is kept under the blocks that it was unpacked of, and no others."""

import torch

from daemon.engine.quantised.unpack import unpack
from daemon.engine.verify.model.wide import Remembering
from daemon.models.formats import FORMATS
from tests.engine.quantised.random_blocks import random_weight


def test_blocks_that_come_where_others_were_are_not_taken_for_them() -> None:
    remembering = Remembering(unpack, 1 << 30)
    whole = random_weight("Q8_0", 64, 64)
    for row in range(64):  # each gone before the next comes, mostly to the same place
        some = whole.data[torch.tensor([row])]
        found = remembering(FORMATS["Q8_0"], some)
        assert torch.equal(found, unpack(FORMATS["Q8_0"], whole.data[row : row + 1]))
        del some


def test_no_more_is_kept_than_may_be() -> None:
    calls = 0

    def counted(form: object, data: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return unpack(FORMATS["Q8_0"], data)

    weight = random_weight("Q8_0", 8, 64)
    remembering = Remembering(counted, 8 * 64 * 4)
    other = random_weight("Q8_0", 8, 32)
    for _ in range(3):
        remembering(weight.format, weight.data)
        remembering(other.format, other.data)
    assert calls == 1 + 3
    remembering.forget()
    remembering(weight.format, weight.data)
    assert calls == 5
