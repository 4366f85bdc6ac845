"""The room of instances whose layers have windows is counted in pages that sequences will hold."""

from daemon.core.placing.candidate import InstanceView
from daemon.memory.kv_cache import KVCache
from daemon.memory.layered_kv import LayeredKV
from daemon.state.request import sequence_id
from daemon.wire.columns import int32
from tests.core.driver import Driver, configured

WINDOWS = (0, 8, 8, 8)


def at_two() -> Driver:
    """A long prompt of a short answer at the first instance, a short one of a long answer at the
    second.
    """
    config = configured(
        instances=2, placement="power_of_two", max_batch_tokens=8, prefill_chunk=8, max_len=200
    )
    driver = Driver(config, 70, windows=WINDOWS)
    driver.predict(driver.arrive([1] * 44, 10), 10)
    driver.predict(driver.arrive([2] * 8, 140), 140)
    for _ in range(8):
        driver.answer(0)
        driver.answer(1)
    running = [len(home.scheduler.running.sequences) for home in driver.core.instances]
    assert running == [1, 1]
    return driver


def test_a_sequence_goes_where_its_pages_have_room() -> None:
    """The first instance has fewer long answers, and room for the newcomer's pages; it has none for
    all of its tokens in each layer, which the second has.
    """
    driver = at_two()
    pools = [home.kv for home in driver.core.instances]
    tokens = [kv.num_unreserved * kv.block_size // kv.num_groups for kv in pools]
    assert tokens[0] < 44 + 4 <= tokens[1]
    request = driver.arrive([3] * 44, 4)
    assert driver.core.sequences[sequence_id(request, 0)].instance == 0
    driver.settle()
    driver.check_nothing_left()


def test_free_room_and_peaks_count_pages_of_windows() -> None:
    driver = at_two()
    view = InstanceView(driver.core.instances[0])
    kv = driver.core.instances[0].kv
    assert isinstance(kv, LayeredKV)
    free = kv.num_unreserved
    longest = max(n for n in range(200) if view.has_room(n))
    assert kv.blocks_to_begin(longest) <= free < kv.blocks_to_begin(longest + 1)
    # 40 tokens take ten pages of the full layers and four of each window; three steps later 11.
    assert view.peak_share(int32([40, 40]), int32([3, 3]), 0) == 2 * (11 + 3 * 4) / 70
    assert view.pool_share(80, 2) == 2 * (10 + 3 * 4) / 70
    assert kv.blocks_each(40) == 2.2 and kv.pool_tokens_at(40) == int(70 * 4 / 2.2)
    plain = KVCache(15, 4, 2, 600, True)
    assert (plain.blocks_each(40), plain.pool_tokens_at(40)) == (1.0, 60)
    assert plain.has_room(60, 0, 0, 0) and not plain.has_room(61, 0, 0, 0)
    assert plain.has_room(61, 4, 3, 1) and not plain.has_room(61, 4, 4, 1)
