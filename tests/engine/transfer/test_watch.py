"""Which layers a `Sender` is told of: those of a step as a whole, computed with its own rows."""

import inspect
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch

from daemon.engine.batch.flat_batch import FlatBatch, part
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.ops import Heads, Ops
from daemon.engine.model.backend import Backend, torch_backend
from daemon.engine.step.step import computed
from daemon.engine.transfer.watch import WatchedOps, watched
from daemon.wire.columns import int32

HEADS = Heads(num_heads=1, num_kv_heads=1, head_dim=8, scale=1.0)
ANGLES = torch.ones(2, 8), torch.zeros(2, 8)


def batch_of_two() -> FlatBatch:
    """Two sequences' first tokens, each in its own block."""
    rows = np.arange(2)
    return FlatBatch(
        tokens=rows + 1,
        own_tokens=np.zeros(0, np.int64),
        own_slots=np.zeros(0, np.int64),
        slots=int32([0, 1]),
        positions=np.zeros(2, np.int64),
        blocks=rows,
        offsets=np.zeros(2, np.int64),
        row_offsets=int32([0, 1]),
        starts=int32([0, 0]),
        counts=int32([1, 1]),
        block_tables=int32([0, 1]).reshape(2, 1),
        single_rows=rows,
        chunk_rows=np.zeros(0, np.int64),
        sampled_tokens=rows,
        sampled_slots=int32([0, 1]),
        sampled_positions=np.ones(2, np.int64),
    )


class Computing:
    """One layer of a fused decoder and its pool."""

    def __init__(self) -> None:
        self.layers: list[int] = []
        self.backend = watched(torch_backend(), self.layers.append)
        self.cache = PagedKV(2, 1, 4, 1, 8, torch.float32, torch.device("cpu"))
        self.fails = False

    def logits(self, batch: FlatBatch, _slots: Any, cache: Any, backend: Backend) -> torch.Tensor:
        """As `CausalModel.logits`; the first one finds no memory where `fails`."""
        if self.fails:
            self.fails = False
            raise torch.OutOfMemoryError("a small GPU")
        return self.attend(backend.attend(batch, cache), len(batch.tokens))

    def attend(self, paged: Any, count: int) -> torch.Tensor:
        angles = ANGLES[0][:count], ANGLES[1][:count]
        return self.backend.ops.attend(paged, 0, torch.ones(count, 24), HEADS, angles)

    def step(self, batch: FlatBatch) -> torch.Tensor:
        return computed(batch, lambda one: self.logits(one, None, self.cache, self.backend))


def test_a_whole_step_tells_each_layer_once() -> None:
    computing = Computing()
    computing.step(batch_of_two())
    assert computing.layers == [0]


def test_what_is_computed_row_by_row_tells_nothing() -> None:
    """Even where no layer was told before memory ran out: one row is not the layer."""
    computing = Computing()
    whole = computing.step(batch_of_two())
    computing.layers.clear()
    computing.fails = True
    assert torch.equal(computing.step(batch_of_two()), whole)
    assert computing.layers == []


def test_pieces_of_a_prompt_tell_nothing() -> None:
    computing = Computing()
    computing.step(part(batch_of_two(), 1, 0, 1))
    assert computing.layers == []


def test_a_step_that_is_captured_tells_nothing() -> None:
    """It computes padding once for real, in the middle of a step whose rows come later."""
    computing = Computing()
    padding = torch_backend().attend(batch_of_two(), computing.cache)  # not the step's own
    computing.attend(padding, 2)
    assert computing.layers == []


@pytest.mark.parametrize("name", [name for name in vars(Ops) if not name.startswith("_")])
def test_every_operation_is_the_backend_s_own(name: str) -> None:
    """None may fall back to torch's because somebody watches."""
    beneath = create_autospec(Ops, instance=True)
    arguments = [object() for _ in inspect.signature(getattr(beneath, name)).parameters]
    found = getattr(WatchedOps(beneath), name)(*arguments)
    getattr(beneath, name).assert_called_once_with(*arguments)
    returns = inspect.get_annotations(getattr(Ops, name))["return"]
    assert found is (None if returns is None else getattr(beneath, name).return_value)
