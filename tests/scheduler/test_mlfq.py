"""FastServe's queues: who joins where, who falls, who is promoted (section 4.1, Algorithm 1)."""

import pytest

from daemon.cost.step_time import StepTimeModel
from daemon.cost.work import StepWork
from daemon.scheduler.policies.mlfq import LEVELS, PATIENCE, Mlfq, level_of, quantum_s
from daemon.state.sequence import Sequence

STEP_S = 0.010
PROMPT_TOKEN_S = 0.001


def learned_step_time() -> StepTimeModel:
    """Decodes of 10 ms in any company, prompts of 1 ms a token besides."""
    step_time = StepTimeModel(STEP_S)
    for index in range(640):
        tokens = (0, 16, 64, 400)[index % 4]
        chunks = ((tokens, 0),) if tokens else ()
        step_time.observe(StepWork(1, 100, chunks, 1), STEP_S + PROMPT_TOKEN_S * tokens)
        step_time.mean_s = STEP_S
    return step_time


def sequence(num_prompt_tokens: int, arrival: int = 0) -> Sequence:
    return Sequence(
        id=128 * arrival,
        num_prompt_tokens=num_prompt_tokens,
        max_tokens=1000,
        priority=0,
        arrived_s=0.0,
        arrival=arrival,
    )


def test_quanta_double() -> None:
    step_time = learned_step_time()
    assert quantum_s(0, step_time) == pytest.approx(STEP_S, rel=0.05)
    for level in range(LEVELS - 1):
        assert quantum_s(level + 1, step_time) == 2 * quantum_s(level, step_time)


@pytest.mark.parametrize(
    ("num_prompt_tokens", "level"), [(1, 1), (5, 1), (25, 2), (60, 3), (300, 5)]
)
def test_a_long_prompt_skips_queues(num_prompt_tokens: int, level: int) -> None:
    """310 ms of prefill need the quantum of 320 ms: level 5."""
    step_time, one = learned_step_time(), sequence(num_prompt_tokens)
    Mlfq().enter(one, step_time)
    assert one.level == level == level_of(step_time.prefill_s(num_prompt_tokens), step_time)


def test_a_quantum_used_up_costs_a_level() -> None:
    policy, step_time, one = Mlfq(), learned_step_time(), sequence(5)
    policy.enter(one, step_time)
    level = one.level
    for fall in range(1, 4):
        outputs = one.review_at - one.num_prompt_tokens
        policy.review(one, outputs, step_time)
        assert one.level == level + fall
        turn = one.review_at - one.num_prompt_tokens - outputs
        assert turn == int(quantum_s(one.level, step_time) / step_time.mean_s)


def test_who_starves_comes_first_for_its_own_quantum_and_falls_back() -> None:
    policy, step_time, one = Mlfq(), learned_step_time(), sequence(300)
    policy.enter(one, step_time)
    own_s = quantum_s(one.level, step_time)
    assert own_s > 0.3
    patience_s = policy.patience_s(one, 0.3, step_time)
    assert patience_s == PATIENCE * own_s > 0.6, "alpha alone would move it for one token"
    assert policy.patience_s(one, 100.0, step_time) == 100.0
    level = one.level
    policy.promote(one, step_time)
    assert policy.rank(one, step_time) < policy.rank(sequence(1), step_time)
    assert one.review_at - one.num_known_tokens == int(own_s / step_time.mean_s)
    policy.review(one, 32, step_time)
    assert not one.promoted and one.level == level + 1


def test_the_last_level_has_no_next() -> None:
    policy, step_time, one = Mlfq(), learned_step_time(), sequence(5)
    one.level = LEVELS - 1
    policy.review(one, 10, step_time)
    assert one.level == LEVELS - 1
