"""Prompts whose tokens cost more than others get smaller chunks, so that no step gets longer."""

import msgspec
import pytest

from daemon.core.values.actions import Submit
from daemon.core.values.events import RequestArrived
from daemon.scheduler.policies import POLICIES
from tests.core.driver import Driver, configured

BUDGET = 32
PROMPT = list(range(70))


def run(policy: str, cost: int) -> tuple[Driver, list[int]]:
    """A driver after one such prompt and its neighbours, and the prompt's chunks."""
    driver = Driver(configured(policy, max_batch_tokens=BUDGET), 200)
    neighbours = [driver.arrive([5, 6, 7], 60) for _ in range(3)]
    for _ in range(3):
        driver.answer()
    request = driver.arrive(PROMPT, 4, prompt_cost=cost)
    (sequence,) = driver.core._requests[request]
    for _ in range(400):
        if not driver.answer():
            break
    assert not driver.alive
    assert len(neighbours) == 3
    chunks = []
    slot = -1
    for action in (one for actions in driver.actions for one in actions):
        if isinstance(action, Submit):
            batch = action.batch
            joined = dict(
                zip(batch.joined_sequences.tolist(), batch.joined_slots.tolist(), strict=True)
            )
            slot = joined.get(sequence.id, slot)
            if slot in batch.slots.tolist() and slot >= 0:
                row = batch.slots.tolist().index(slot)
                count = int(batch.counts[row])
                others = int(batch.counts.sum()) - count
                if count > 1:
                    assert others + count * cost <= max(BUDGET, others + cost)
                    chunks.append(count)
    return driver, chunks


@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_s_budget_holds_what_tokens_cost(policy: str) -> None:
    _driver, usual = run(policy, 1)
    _driver, scored = run(policy, 2)
    assert sum(usual) in (len(PROMPT), len(PROMPT) - 1)
    assert max(scored) <= -(-max(usual) // 2)
    assert len(scored) > len(usual)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_token_that_costs_more_than_a_step_is_still_computed(policy: str) -> None:
    driver, _chunks = run(policy, 1000)
    assert not driver.alive


def test_journals_from_before_read_as_they_were() -> None:
    event = RequestArrived(1.0, 2, 3, 4, hashes=b"x")
    encoded = msgspec.msgpack.decode(msgspec.msgpack.encode(event))
    old = msgspec.msgpack.encode(encoded[:-1])
    assert msgspec.msgpack.decode(old, type=RequestArrived) == event
