"""Which snapshots stay: those that save most tokens, of those that were used."""

from daemon.memory.block_pool import BlockPool
from daemon.memory.snapshots import Snapshots

_BLOCK = 4


def _hashes(chat: int, num_blocks: int) -> list[bytes]:
    return [bytes([chat, block]) * 8 for block in range(num_blocks)]


def _made(snapshots: Snapshots, step: int, chat: int, num_blocks: int) -> bool:
    """Whether a prompt of so many blocks leaves a snapshot behind it."""
    tokens = num_blocks * _BLOCK
    snapshots.begin(0, 0, _hashes(chat, num_blocks), tokens)
    made = bool(snapshots.take(0, tokens, room=100))
    snapshots.planned(step)
    snapshots.leave(0)
    return made


def _kept(snapshots: Snapshots, chat: int) -> int:
    return snapshots.longest(_hashes(chat, 60), 60)


def test_the_one_that_saves_least_goes_first() -> None:
    pool = BlockPool(16)
    snapshots = Snapshots(pool, 2, _BLOCK, share=0.4)
    for chat, num_blocks in enumerate([20, 5, 40]):
        assert _made(snapshots, chat + 1, chat, num_blocks)
        pool.step_done(chat + 1)
    assert _made(snapshots, 4, 3, 10)
    assert [_kept(snapshots, chat) for chat in range(4)] == [20, 0, 40, 10]
    assert not _made(snapshots, 5, 4, 4)  # it saves less than any
    pool.step_done(5)
    assert pool.check().held == 0


def _after_two_more(used: bool) -> list[int]:
    """The snapshots left of four, of which two fit; the second may have been used."""
    pool = BlockPool(16)
    snapshots = Snapshots(pool, 2, _BLOCK, share=0.3)
    for step, (chat, num_blocks) in enumerate([(0, 12), (1, 14), (2, 13)], 1):
        assert _made(snapshots, step, chat, num_blocks)  # the third takes the place of the first
        pool.step_done(step)
    if used:
        snapshots.read(0, _hashes(1, 14)[-1], 14 * _BLOCK)
    snapshots.planned(4)
    snapshots.leave(0)
    pool.step_done(4)
    assert _made(snapshots, 5, 3, 20)
    return [_kept(snapshots, chat) for chat in range(4)]


def test_an_old_one_goes_unless_it_was_of_use() -> None:
    assert _after_two_more(used=False) == [0, 0, 13, 20]
    assert _after_two_more(used=True) == [0, 14, 0, 20]


def test_a_snapshot_is_gone_with_any_of_its_pages() -> None:
    pool = BlockPool(16)
    snapshots = Snapshots(pool, 4, _BLOCK, share=1.0)
    assert _made(snapshots, 1, 0, 8)
    pool.step_done(1)
    assert _kept(snapshots, 0) == 8
    pool.allocate(13)
    assert _kept(snapshots, 0) == 0
    assert len(snapshots) == 0


def test_a_checkpoint_makes_no_snapshot_whole() -> None:
    pool = BlockPool(16)
    snapshots = Snapshots(pool, 4, _BLOCK, share=1.0)
    assert _made(snapshots, 1, 0, 8)
    pool.step_done(1)
    pool.allocate(13)
    again = Snapshots(pool, 4, _BLOCK, share=1.0)
    again.restore(snapshots.state())
    assert _kept(again, 0) == 0
    assert len(again) == 0


def _of_answer(snapshots: Snapshots, step: int, num_blocks: int, begins: int = 0) -> None:
    """A sequence of a chat decodes so many blocks, and began with a snapshot behind some."""
    hashes = _hashes(0, num_blocks)
    if begins:
        snapshots.read(0, hashes[begins - 1], begins * _BLOCK)
    snapshots.begin(0, begins * _BLOCK, hashes, 0)
    assert snapshots.take_of_answer(0, num_blocks * _BLOCK, room=100)
    snapshots.planned(step)
    snapshots.leave(0)


def test_a_chats_next_one_is_worth_what_the_one_before_was() -> None:
    """Else each turn's own tokens alone would count, and a chat would lose all of them."""
    pool = BlockPool(16)
    snapshots = Snapshots(pool, 2, _BLOCK, share=0.3)
    _of_answer(snapshots, 1, 20)
    pool.step_done(1)
    _of_answer(snapshots, 2, 22, begins=20)
    pool.step_done(2)
    assert _made(snapshots, 3, 1, 15)  # in place of the first of the chat
    pool.step_done(3)
    assert [_kept(snapshots, chat) for chat in (0, 1)] == [22, 15]
    assert pool.check().held == 0


def test_one_that_several_began_from_stays() -> None:
    pool = BlockPool(16)
    snapshots = Snapshots(pool, 2, _BLOCK, share=0.4)
    _of_answer(snapshots, 1, 20)
    pool.step_done(1)
    for step, num_blocks in ((2, 22), (3, 23)):
        _of_answer(snapshots, step, num_blocks, begins=20)
        pool.step_done(step)
    assert _made(snapshots, 4, 1, 15)  # it saves more than those of two turns do
    pool.step_done(4)
    assert snapshots.longest(_hashes(0, 20), 20) == 20


def test_one_whose_last_block_is_gone_is_the_first_to_go() -> None:
    pool = BlockPool(16)
    snapshots = Snapshots(pool, 2, _BLOCK, share=0.3, behind_blocks=True)
    (block,) = pool.allocate(1)
    pool.cache.register([_hashes(1, 5)[-1]], [block])
    for step, (chat, num_blocks) in enumerate([(0, 20), (1, 5), (2, 10)], 1):
        assert _made(snapshots, step, chat, num_blocks)
        pool.step_done(step)
    assert [_kept(snapshots, chat) for chat in range(3)] == [0, 5, 10]


def test_where_no_page_is_free_one_goes_and_not_the_blocks_of_others() -> None:
    pool = BlockPool(16)
    snapshots = Snapshots(pool, 4, _BLOCK, share=1.0)
    assert _made(snapshots, 1, 0, 8)
    pool.step_done(1)
    blocks = pool.allocate(12)
    pool.cache.register(_hashes(9, 12), blocks)
    pool.let_go(blocks)
    assert _made(snapshots, 2, 1, 9)
    pool.step_done(2)
    assert [_kept(snapshots, chat) for chat in range(2)] == [0, 9]
    assert len(pool.cache.match(_hashes(9, 12))) == 12
