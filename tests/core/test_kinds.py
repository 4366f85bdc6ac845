"""What a snapshot says of the kinds of layers of a pool."""

import numpy as np
from msgspec import UNSET

from daemon.core.values.snapshot import KindStatus
from daemon.core.view.view import snapshot
from daemon.memory.block_pool import BlockUse
from tests.core.driver import Driver, configured


def kinds_of(driver: Driver) -> tuple[KindStatus, ...]:
    """Those of the first instance, which count what its map shows."""
    status = snapshot(driver.core, driver.now).instances[0]
    assert status.by_kind is not UNSET
    for use, name in ((BlockUse.HELD, "held"), (BlockUse.CACHED, "cached")):
        shown = np.bincount(status.by_kind.kind_map[status.block_map == use], minlength=3).tolist()
        assert shown[: len(status.kv_kinds)] == [getattr(kind, name) for kind in status.kv_kinds]
    assert sum(kind.held for kind in status.kv_kinds) == status.kv_held
    assert sum(kind.fenced for kind in status.kv_kinds) == status.kv_fenced
    return status.kv_kinds


def test_pages_are_counted_by_kind() -> None:
    """A window of eight tokens holds four of the seven blocks; two groups have the one window."""
    driver = Driver(configured(max_len=64), 80, windows=(0, 8, 8, 24))
    driver.arrive([5] * 24, 8)
    for _ in range(4):
        driver.answer()
    counted = [(kind.kind, kind.window, kind.groups, kind.held) for kind in kinds_of(driver)]
    assert counted == [("full", 0, 1, 7), ("window", 8, 2, 8), ("window", 24, 1, 7)]
    driver.settle()
    assert [kind.held for kind in kinds_of(driver)] == [0, 0, 0]
    assert kinds_of(driver)[0].cached == 6  # all that was full


def test_the_names_of_kinds_are_those_of_the_worker() -> None:
    driver = Driver(configured(), 0)
    driver.windows, driver.kinds = (0, 8), ("latent", "window")
    driver.ready(0, 40)
    driver.arrive([5] * 9, 2)
    driver.settle()
    assert [kind.kind for kind in kinds_of(driver)] == ["latent", "window"]


def test_a_pool_whose_blocks_have_all_layers_has_no_kinds() -> None:
    driver = Driver(configured(), 40)
    status = snapshot(driver.core, 0.0).instances[0]
    assert status.by_kind is UNSET and status.kv_kinds == ()
