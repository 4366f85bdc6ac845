"""FastServe's queues: who joins where, who falls, who is promoted (section 4.1, Algorithm 1)."""

import pytest

from daemon.cost.step_time import StepTimeModel
from daemon.cost.work import StepWork
from daemon.scheduler.policies.mlfq import LEVELS, PATIENCE, Mlfq, MlfqQ1, level_of, quantum_s
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


def test_as_printed_a_starving_one_goes_to_the_first_queue_for_its_quantum_and_falls_anew() -> None:
    policy, step_time, one = MlfqQ1(), learned_step_time(), sequence(300)
    policy.enter(one, step_time)
    assert one.level == 5 and policy.patience_s(one, 0.3, step_time) == 0.3
    policy.promote(one, step_time)
    assert one.level == 0 and 0.0 <= policy.rank(one, step_time) < 1.0
    assert one.review_at - one.num_known_tokens == 1, "the first queue's quantum is one step"
    policy.review(one, 1, step_time)
    assert one.level == 0 and one.promoted, "its token is planned, and has not come"
    levels = []
    for outputs in (1, 3, 7):
        one.num_output_tokens = outputs
        policy.review(one, outputs, step_time)
        levels.append(one.level)
    assert levels == [1, 2, 3] and not one.promoted


def test_as_printed_a_starving_one_goes_behind_those_that_starved_before_it() -> None:
    """By arrival the oldest answers would rise again and again before any that have not begun."""
    policy, step_time = MlfqQ1(), learned_step_time()
    ranks = []
    for arrival, since_s in ((0, 1000.2), (1, 1000.1)):
        one = sequence(300, arrival)
        one.waiting_since_s = since_s
        policy.enter(one, step_time)
        policy.promote(one, step_time)
        ranks.append(policy.rank(one, step_time))
    assert 0.0 < ranks[1] < ranks[0] < 1.0
