"""The toy can be trusted: right plans always draw the same tokens, and wrong ones show."""

import random

import msgspec
import pytest

from daemon.protocol.worker import Copied, Load, Plan
from daemon.state.request import SamplingParams
from daemon.wire.columns import int32
from tests.chaos.cases import toy_folder
from tests.chaos.engine import ToyEngine, ToyError
from tests.engine.driver import GREEDY, Driver, Running

BLOCK_SIZE = 4
PROMPT = list(range(20, 42))
COUNT = 30
HOT = SamplingParams(temperature=1.0, seed=5, ignore_eos=True)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    folder = toy_folder(tmp_path_factory.mktemp("toy") / "toy")
    return Load(str(folder), "cpu", "float32", BLOCK_SIZE, 64, 4, 200, 512, num_host_blocks=32)


class Bench:
    """A toy, and a driver that plans for it."""

    def __init__(self, load: Load) -> None:
        self.copied: list[Copied] = []
        self.engine = ToyEngine(load, self.copied.append)
        self.driver = Driver(BLOCK_SIZE, list(range(load.num_blocks)))

    def step(self, *work: tuple[Running, int], **changes: object) -> None:
        """One step, its plan changed so."""
        plan = self.driver.plan(list(work))
        batch = msgspec.structs.replace(plan.batch, **changes)
        self.driver.take(list(work), self.engine.run(Plan(batch, plan.inputs, plan.joins)))

    def decode(self, running: Running, count: int) -> list[int]:
        """So many tokens more."""
        for _ in range(count):
            self.step((running, 1))
        return running.outputs


def right(load: Load, sampling: SamplingParams = GREEDY) -> list[int]:
    """The answer, computed in the plainest way."""
    bench = Bench(load)
    running = bench.driver.add(0, PROMPT, sampling)
    bench.step((running, len(PROMPT)))
    return bench.decode(running, COUNT - 1)


@pytest.mark.parametrize("sampling", [GREEDY, HOT])
def test_chunks_recomputing_and_neighbours_change_nothing(
    load: Load, sampling: SamplingParams
) -> None:
    bench, chance = Bench(load), random.Random(1)
    running = bench.driver.add(2, PROMPT, sampling)
    other = bench.driver.add(0, PROMPT[::-1], HOT)
    bench.step((other, len(PROMPT)))
    while running.num_computed < len(PROMPT):
        left = len(PROMPT) - running.num_computed
        bench.step((other, 1), (running, min(left, chance.randrange(1, 9))))
    bench.decode(running, 10)
    bench.driver.leave(running)
    again = bench.driver.add(1, running.tokens, sampling)
    again.num_prompt_tokens = len(PROMPT)
    bench.step((again, 7))
    bench.step((again, len(again.tokens) - 7))
    assert bench.decode(again, COUNT - len(again.outputs)) == right(load, sampling)


def test_seed_and_place_decide_where_there_is_heat(load: Load) -> None:
    other = msgspec.structs.replace(HOT, seed=6)
    assert len({tuple(right(load, one)) for one in (GREEDY, HOT, other)}) == 3
    assert right(load, HOT) == right(load, HOT)


def test_blocks_that_went_out_and_came_back_change_nothing(load: Load) -> None:
    bench = Bench(load)
    running = bench.driver.add(0, PROMPT)
    bench.step((running, len(PROMPT)))
    bench.decode(running, 5)
    places = list(range(3, 3 + len(running.blocks)))
    bench.driver.outs += zip(running.blocks, places, strict=True)
    bench.driver.leave(running)
    bench.step()
    back = bench.driver.back(1, running, places)
    bench.step(awaits=bench.driver.step + 1)
    bench.step((back, len(back.tokens) - back.num_computed))
    back.num_prompt_tokens = len(PROMPT)
    assert bench.decode(back, COUNT - len(back.outputs)) == right(load)
    assert sum(one.num_in for one in bench.copied) == len(places)


def started(load: Load) -> tuple[Bench, Running, Running]:
    """Two sequences that have begun."""
    bench = Bench(load)
    pair = [bench.driver.add(slot, PROMPT[slot:]) for slot in (0, 1)]
    bench.step(*((one, len(one.tokens)) for one in pair))
    return bench, *pair


def test_a_block_of_another_sequence_shows(load: Load) -> None:
    bench, one, other = started(load)
    table = {"table_slots": int32([0]), "table_indices": int32([2])}
    with pytest.raises(ToyError, match="belongs to another context"):
        bench.step((one, 1), **table, table_blocks=int32([other.blocks[2]]))


def test_a_copy_that_nobody_awaited_shows(load: Load) -> None:
    bench, one, _other = started(load)
    bench.driver.outs.append((one.blocks[0], 9))
    bench.step()
    while bench.engine.copies_fly:
        bench.engine.end_copies()
    bench.engine._chance = Never()
    bench.driver.ins.append((9, one.blocks[0]))
    with pytest.raises(ToyError, match="position 0 of 23, in block"):
        bench.step((one, 1))


def test_a_block_that_is_written_while_it_goes_out_shows(load: Load) -> None:
    bench, one, _other = started(load)
    bench.engine._chance = Never()
    bench.driver.outs.append((one.blocks[-1], 9))
    bench.step((one, 1))
    with pytest.raises(ToyError, match="was written while it was copied to 9"):
        bench.engine.end_copies()


def test_a_slot_that_is_taken_twice_or_left_by_nobody_shows(load: Load) -> None:
    bench, _one, _other = started(load)
    bench.driver.add(1, PROMPT)
    with pytest.raises(ToyError, match="slot 1 is taken twice"):
        bench.step()
    bench.driver.left.append(3)
    with pytest.raises(ToyError, match="slot 3 is left, but nobody sat there"):
        bench.step()


def test_a_token_that_was_lost_or_fed_twice_is_another_text(load: Load) -> None:
    bench, one, _other = started(load)
    bench.decode(one, 3)
    one.tokens[-1], one.tokens[-2] = one.tokens[-2], one.tokens[-1]
    bench.driver.leave(one)
    wrong = bench.driver.add(0, one.tokens)
    wrong.num_prompt_tokens = len(PROMPT)
    bench.step((wrong, len(wrong.tokens)))
    assert bench.decode(wrong, COUNT - len(wrong.outputs)) != right(load)


class Never(random.Random):
    """No copy ends early."""

    def random(self) -> float:
        return 1.0
