"""Prompts go on from snapshots of states; the worker says where a state is of other tokens."""

import random
from typing import Any

import pytest

from daemon.core.core import Core
from daemon.core.view.checkpoint import Checkpoint, checkpoint, restore
from daemon.memory.snapshot_kv import SnapshotKV
from daemon.memory.snapshots import MOST_SHARE
from daemon.wire.columns import decoder, encoder
from tests.core.driver import Driver, configured
from tests.soak import tries

SYSTEM = [(7 * i + i // 3) % 11 for i in range(64)]
BORDER = 56
"""The last whole block in front of what may be the header of the answer."""
LAYERS = [((0,), 3), ((), 3), ((0, 9), 2)]


def _driver(layers: tuple[tuple[int, ...], int], num_pages: int = 400, **changes: Any) -> Driver:
    windows, state_pages = layers
    config = configured(max_len=400, max_batch_tokens=128, prefill_chunk=128, **changes)
    return Driver(config, num_pages, windows=windows, state_pages=state_pages)


def _kv(driver: Driver) -> SnapshotKV:
    kv = driver.core.instances[0].kv
    assert isinstance(kv, SnapshotKV)
    return kv


def _ask(driver: Driver, prompt: list[int], max_tokens: int = 1) -> tuple[int, list[int]]:
    """The prompt tokens that an answer did not compute, and the whole conversation behind it."""
    before = driver.core.counters.cached_tokens
    request = driver.arrive(prompt, max_tokens)
    while driver.answer():
        for sequence in sorted(driver.alive):
            driver.seal(sequence)
    return driver.core.counters.cached_tokens - before, list(driver.known[128 * request])


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("depth", [1, 2])
def test_the_same_prompt_goes_on_in_front_of_its_header(
    layers: tuple[tuple[int, ...], int], depth: int
) -> None:
    driver = _driver(layers, depth=depth)
    assert _ask(driver, SYSTEM)[0] == 0
    assert _ask(driver, SYSTEM)[0] == BORDER
    assert _ask(driver, [*SYSTEM, 1, 2, 3])[0] == BORDER
    driver.check_nothing_left()


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_chat_goes_on_behind_its_answer(layers: tuple[tuple[int, ...], int], depth: int) -> None:
    driver = _driver(layers, depth=depth)
    chat = SYSTEM[:30]
    for turn in range(6):
        known = len(chat)
        cached, chat = _ask(driver, [*chat, turn, 3, turn, 1, 0], 17)
        if turn:  # all but the last blocks: their hashes are not known yet when an answer ends
            assert cached >= known - 2 * driver.config.block_size
    assert len(_kv(driver).snapshots) <= 2 * 6
    driver.check_nothing_left()


@pytest.mark.parametrize("layers", LAYERS)
def test_the_third_prompt_goes_on_where_the_first_two_parted(
    layers: tuple[tuple[int, ...], int],
) -> None:
    driver = _driver(layers)
    parted = [_ask(driver, [*SYSTEM[:48], *[user] * 40])[0] for user in range(4)]
    assert parted == [0, 0, 48, 48]


def test_what_follows_a_leader_goes_on_from_its_snapshot() -> None:
    driver = _driver(((0,), 3))
    driver.arrive(SYSTEM, 4, n=3)
    driver.settle()
    assert driver.core.counters.cached_tokens == 2 * BORDER
    driver.check_nothing_left()


def test_the_snapshots_of_one_that_failed_are_gone() -> None:
    driver = _driver(((0,), 3))
    driver.arrive(SYSTEM, 8)
    driver.answer()
    assert len(_kv(driver).snapshots) == 1
    driver.answer(fails=frozenset({0}))
    assert len(_kv(driver).snapshots) == 0
    assert _ask(driver, SYSTEM)[0] == 0
    driver.check_nothing_left()


def test_a_copy_is_planned_though_its_sequence_is_gone() -> None:
    """Else the pages that it reads and writes would be nobody's for ever."""
    driver = _driver(((0,), 3))
    request = driver.arrive(SYSTEM, 8)
    driver.abort(request)
    driver.settle()
    driver.check_nothing_left()
    assert _ask(driver, SYSTEM)[0] == BORDER


def test_snapshots_have_a_share_of_the_pool() -> None:
    """Of chats with answers of their own, those that save the fewest tokens go first."""
    driver = _driver(((0,), 5), num_pages=100)
    for user in range(12):
        _ask(driver, [user] * (20 + 4 * (user % 5)), 4)
    assert 2 <= len(_kv(driver).snapshots) <= int(MOST_SHARE * 100) // 5
    driver.check_nothing_left()


def test_a_prompt_that_needs_the_whole_pool_does_without_its_snapshot() -> None:
    driver = _driver(((0,), 3), num_pages=20)
    long = SYSTEM[:60]
    _ask(driver, long, 1)
    _, chat = _ask(driver, [*long, 1, 2], 6)
    assert len(chat) == 68
    driver.check_nothing_left()


@pytest.mark.parametrize("layers", LAYERS)
def test_a_checkpoint_keeps_snapshots(layers: tuple[tuple[int, ...], int]) -> None:
    """A Core that goes on from it does what the first one does."""
    driver = _driver(layers)
    _ask(driver, SYSTEM, 9)
    _ask(driver, [*SYSTEM[:48], 1, 2, 3], 2)
    state = checkpoint(driver.core, driver.now)
    state = decoder(Checkpoint).decode(encoder().encode(state))
    again = Core(driver.config)
    restore(again, state)
    number = len(driver.events)
    for prompt in ([*SYSTEM, 1, 2], [*SYSTEM[:48], 1, 2, 3, 4]):
        assert _ask(driver, prompt, 5)[0]
    events, actions = driver.events[number:], driver.actions[number:]
    for event, expected in zip(events, actions, strict=True):
        assert encoder().encode(again.handle(event)) == encoder().encode(expected)


class _Chat:
    """A chat of several turns, as a client and its template send it."""

    def __init__(self, system: list[int], strips: bool) -> None:
        """`strips`: the template leaves thoughts out of the turns before the last."""
        self._chance = random.Random(1)
        self._history, self._strips = list(system), strips
        self.least = len(system)  # prompt tokens that must be computed
        self.computed = 0
        self._again = 0  # tokens of the newest answer that the next prompt has in another place

    def _tokens(self, low: int, high: int) -> list[int]:
        return [self._chance.randrange(50) for _ in range(self._chance.randint(low, high))]

    def turn(self, driver: Driver) -> None:
        asked, thoughts = self._tokens(60, 120), 40 if self._strips else 0
        prompt = [*self._history, 47, *asked, 48, 49, 47]
        cached, chat = _ask(driver, prompt, self._chance.randint(100, 200))
        self.computed += len(prompt) - cached
        self.least += 4 + len(asked) + self._again
        answer = chat[len(prompt) + thoughts :]
        self._again = len(answer) if self._strips else 0
        self._history = [*prompt, *answer]


@pytest.mark.parametrize("strips", [False, True])
def test_a_chat_computes_little_but_what_is_new(strips: bool) -> None:
    """Twenty turns over a system prompt of 2,000 tokens, in the long form."""
    config = configured(block_size=16, max_len=8192, max_batch_tokens=512, prefill_chunk=512)
    driver = Driver(config, 1000, windows=(0,), state_pages=20)
    driver.check = lambda: None  # type: ignore[method-assign] # at its end alone: it is long
    chat = _Chat(SYSTEM * tries(8, 31), strips)
    for _ in range(tries(5, 20)):
        chat.turn(driver)
    print(f"computed {chat.computed} of {chat.least} tokens at least")
    assert chat.computed <= 1.1 * chat.least
    driver.check_nothing_left()


def _found_in_a_circle(num_pages: int) -> int:
    """The tokens found by five chats of five turns, which take turns."""
    config = configured(max_len=400, max_batch_tokens=128, prefill_chunk=128)
    driver = Driver(config, num_pages, windows=(0,), state_pages=16)
    driver.check = lambda: None  # type: ignore[method-assign] # at its end alone: it is long
    chats = [[*SYSTEM, *SYSTEM, user] for user in range(5)]
    found = 0
    for turn in range(5):
        for user, chat in enumerate(chats):
            cached, chats[user] = _ask(driver, [*chat, *[turn, user] * 5], 10)
            found += cached
    driver.check_nothing_left()
    return found


def test_chats_in_a_circle_go_on_in_a_pool_for_one_snapshot_of_each() -> None:
    """Each leaves two snapshots a turn; those that are read next must not be those that went."""
    assert _found_in_a_circle(300) == _found_in_a_circle(1000)
