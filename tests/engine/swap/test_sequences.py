"""Sequences that leave for the host pool and come back go on as if they had stayed."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch

from daemon.engine.step.step import Engine
from daemon.engine.worker.start import start
from daemon.protocol.worker import Copied, Load, Reply
from tests.engine.driver import Driver, Running
from tests.engine.tiny import CONTEXT_LEN, VOCAB_SIZE, greedy, reference, save
from tests.hangs import HANG_S

BLOCK_SIZE, NUM_BLOCKS, NUM_PLACES = 8, 40, 48

Start = Callable[..., Engine]


@pytest.fixture(scope="module")
def start_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    folder = save("llama", tmp_path_factory.mktemp("llama"))
    engines: dict[bool, Engine] = {}

    def started(compress: bool = False) -> Engine:
        if compress not in engines:
            engines[compress] = load(folder, compress)
        return engines[compress]

    yield started
    for engine in engines.values():
        assert engine.swap is not None
        engine.swap.close()


def load(folder: Path, compress: bool, num_host_blocks: int = NUM_PLACES) -> Engine:
    message = Load(
        model=str(folder),
        device="cpu",
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        max_slots=8,
        max_len=CONTEXT_LEN,
        max_batch_tokens=64,
        num_host_blocks=num_host_blocks,
        compress=compress,
    )
    with torch.inference_mode():
        return start(message, lambda stage, done: None)[0]


def prompt(length: int, seed: int) -> list[int]:
    chooser = random.Random(seed)
    return [chooser.randrange(2, VOCAB_SIZE) for _ in range(length)]


def run(engine: Engine, plans: Driver, work: list[tuple[Running, int]]) -> Reply:
    with torch.inference_mode():
        reply = engine.run(plans.plan(work))
    plans.take(work, reply)
    return reply


def overwrite(engine: Engine, value: float, blocks: list[int]) -> None:
    with torch.inference_mode():
        engine.cache.blocks[blocks] = value


def rest(running: Running) -> tuple[Running, int]:
    return running, len(running.tokens) - running.num_computed


def test_blocks_come_back_byte_for_byte_while_steps_run(start_engine: Start) -> None:
    engine, plans = start_engine(), Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
    first, second = plans.add(0, prompt(21, 1)), plans.add(1, prompt(9, 2))
    for _ in range(3):
        run(engine, plans, [rest(first), rest(second)])
    kept = engine.cache.blocks[first.blocks].clone()
    places = [30, 4, 5][: len(first.blocks)]
    plans.outs = list(zip(first.blocks, places, strict=True))
    plans.leave(first)
    left_in = run(engine, plans, [rest(second)])
    assert left_in.tokens.size == 1
    # Others write to its blocks, once its copies are awaited.
    plans.awaits = left_in.step
    plans.free_blocks += first.blocks
    third = plans.add(2, prompt(25, 3))
    run(engine, plans, [rest(third), rest(second)])
    assert not torch.equal(engine.cache.blocks[first.blocks], kept)
    back = plans.back(3, first, places)
    assert back.blocks != first.blocks
    plans.awaits = plans.step + 1
    run(engine, plans, [rest(back), rest(second)])
    sizes = first.num_computed // BLOCK_SIZE
    assert torch.equal(engine.cache.blocks[back.blocks[:sizes]], kept[:sizes])
    for _ in range(4):
        run(engine, plans, [rest(back), rest(second), rest(third)])
    assert first.outputs + back.outputs == greedy(reference("llama"), prompt(21, 1), 8)
    assert second.outputs == greedy(reference("llama"), prompt(9, 2), len(second.outputs))
    assert third.outputs == greedy(reference("llama"), prompt(25, 3), len(third.outputs))


def test_a_plan_may_have_copies_and_no_rows(start_engine: Start) -> None:
    engine, plans = start_engine(), Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
    told: SimpleQueue[Copied] = SimpleQueue()
    assert engine.swap is not None
    engine.swap.listen(told.put, lambda _error: None)
    running = plans.add(0, prompt(12, 4))
    run(engine, plans, [rest(running)])
    plans.outs = [(running.blocks[0], 0), (running.blocks[1], 1)]
    reply = run(engine, plans, [])
    assert reply.tokens.size == reply.reasons.size == 0 and reply.logprobs is None
    copied = told.get(timeout=HANG_S)
    assert (copied.step, copied.num_out, copied.num_in) == (reply.step, 2, 0)
    overwrite(engine, 0.0, running.blocks)
    plans.ins = [(0, running.blocks[0]), (1, running.blocks[1])]
    run(engine, plans, [])
    assert told.get(timeout=HANG_S).num_in == 2
    for _ in range(3):
        run(engine, plans, [rest(running)])
    assert running.outputs == greedy(reference("llama"), prompt(12, 4), 4)


def test_a_plan_that_swaps_without_a_host_pool_is_refused(tmp_path: Path) -> None:
    engine = load(save("llama", tmp_path / "llama"), compress=False, num_host_blocks=0)
    assert engine.swap is None
    plans = Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
    running = plans.add(0, prompt(5, 5))
    run(engine, plans, [rest(running)])
    plans.outs = [(running.blocks[0], 0)]
    with pytest.raises(ValueError, match="there is no host pool"):
        run(engine, plans, [])


@pytest.mark.parametrize("seed", range(3))
def test_swaps_at_random_do_not_change_a_token(start_engine: Start, seed: int) -> None:
    engine, story = start_engine(), Story(seed)
    with torch.inference_mode():
        story.tell(engine)
    assert story.num_swaps > 5


def test_compressed_sequences_go_on_with_words_of_their_own(start_engine: Start) -> None:
    """Text may change; what the device holds stays within equation 8 of what it was."""
    engine, plans = start_engine(compress=True), Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
    # Former owners' rubbish, in blocks that are filled in part.
    overwrite(engine, 1e3, list(range(NUM_BLOCKS)))
    running = plans.add(0, prompt(20, 6))
    run(engine, plans, [rest(running)])
    kept = engine.cache.blocks[running.blocks].clone()
    assert engine.cache.fills[running.blocks].tolist() == [8, 8, 4]
    plans.outs = [(block, place) for place, block in enumerate(running.blocks)]
    plans.leave(running)
    run(engine, plans, [])
    back = plans.back(1, running, [0, 1, 2])
    plans.awaits = plans.step + 1
    run(engine, plans, [])
    now = engine.cache.blocks[back.blocks]
    for block, fill in enumerate((8, 8, 4)):
        was, came = kept[block, :, :, :fill], now[block, :, :, :fill]
        span = was.amax(2) - was.amin(2) + 2e-3 * was.abs().amax(2)
        assert ((came - was).abs().amax(2) <= 0.5 * 1.003 * span / 255 + 1e-6).all()
        assert not torch.equal(was, came)
    run(engine, plans, [rest(back)])
    assert 0 <= back.outputs[0] < VOCAB_SIZE


class Story:
    """Sequences that come, leave for the host pool or for good, and come back, all at random.

    Blocks are given away as the daemon's Core does: those that went out when a later plan awaits
    the copies, those that came in at once to the plan that brought them.
    """

    def __init__(self, seed: int) -> None:
        self.chooser = random.Random(seed)
        self.plans = Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
        self.chooser.shuffle(self.plans.free_blocks)
        self.places = list(range(NUM_PLACES))
        self.slots = list(range(8))
        self.waiting = [prompt(self.chooser.randrange(1, 40), 100 * seed + i) for i in range(9)]
        self.running: list[tuple[list[int], Running]] = []
        self.away: list[tuple[list[int], Running, list[int]]] = []
        self.fenced: list[tuple[int, list[int], list[int]]] = []  # plan, blocks, places
        self.num_swaps = 0

    def tell(self, engine: Engine) -> None:
        while self.waiting or self.running or self.away:
            self._unfence()
            self._begin()
            work = self._work()
            for _prompt, running in [one for one in self.running if one[1].num_computed]:
                if self.chooser.random() < 0.2 and all(running is not row for row, _ in work):
                    self._leave(running)
            run(engine, self.plans, work)
            self._end()

    def _unfence(self) -> None:
        """Use fenced blocks and places from now on: this plan awaits their copies."""
        if self.fenced and self.chooser.random() < 0.7:
            self.plans.awaits = max(step for step, _, _ in self.fenced)
            for _step, blocks, places in self.fenced:
                self.plans.free_blocks[:0] = blocks
                self.places[:0] = places
            self.fenced = []

    def _begin(self) -> None:
        room = len(self.plans.free_blocks) - 6 * len(self.running)
        if self.away and self.slots and room > 10 and self.chooser.random() < 0.6:
            tokens, gone, places = self.away.pop(self.chooser.randrange(len(self.away)))
            back = self.plans.back(self.slots.pop(), gone, places)
            self.running.append((tokens, back))
            # Its first row may be in this very plan, or in a later one.
            self.plans.awaits = self.plans.step + 1
            self.fenced.append((self.plans.step + 1, [], places))
        elif self.waiting and self.slots and room > 10:
            tokens = self.waiting.pop()
            self.running.append((tokens, self.plans.add(self.slots.pop(), tokens)))

    def _work(self) -> list[tuple[Running, int]]:
        work = []
        for _tokens, running in self.running:
            if self.chooser.random() < 0.7:
                left = len(running.tokens) - running.num_computed
                work.append((running, min(left, self.chooser.randrange(1, 20))))
        return work

    def _leave(self, running: Running) -> None:
        """With the next plan, before it is computed: copies out, and the slot is free."""
        index = next(i for i, (_, one) in enumerate(self.running) if one is running)
        tokens, _ = self.running[index]
        used = -(-running.num_computed // BLOCK_SIZE)
        if len(self.places) < used or any(join.slot == running.slot for join in self.plans.joins):
            return
        del self.running[index]
        places = [self.places.pop() for _ in range(used)]
        self.plans.outs += zip(running.blocks[:used], places, strict=True)
        self.plans.leave(running)
        self.slots[:0] = [running.slot]
        self.away.append((tokens, running, places))
        self.fenced.append((self.plans.step + 1, running.blocks, []))
        self.num_swaps += 1

    def _end(self) -> None:
        for tokens, running in list(self.running):
            outputs = running.tokens[len(tokens) :]
            if len(outputs) >= 10:
                answer = outputs[:10]
                assert answer == greedy(reference("llama"), tokens, 10, answer)
                self.plans.leave(running)
                self.plans.free_blocks[:0] = running.blocks
                self.slots[:0] = [running.slot]
                self.running.remove((tokens, running))
