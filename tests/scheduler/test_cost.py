"""Models that learn from what they see."""

import random

import pytest

from daemon.cost.finish_rate import MOST_PROMISED_S, FinishRate
from daemon.cost.step_time import StepTimeModel
from daemon.cost.work import StepWork


def _some_work(chance: random.Random) -> StepWork:
    decodes = chance.randint(0, 64)
    chunks = tuple(
        (chance.randint(2, 512), chance.randint(0, 1000)) for _ in range(chance.randint(0, 3))
    )
    return StepWork(decodes, decodes * chance.randint(10, 800), chunks)


def _truth_s(work: StepWork) -> float:
    tokens, pairs = work.prompts()
    decodes = 3e-5 * work.num_decodes + 4e-8 * work.decode_context
    return 0.004 + decodes + 2e-5 * tokens + 3e-9 * pairs


def test_the_law_of_the_steps_is_learned() -> None:
    chance = random.Random(1)
    model = StepTimeModel(0.5)
    for _ in range(2000):
        work = _some_work(chance)
        model.observe(work, _truth_s(work) * chance.lognormvariate(0, 0.05))
    for _ in range(100):
        work = _some_work(chance)
        assert model.predict_s(work) == pytest.approx(_truth_s(work), rel=0.05)
    assert model.prefill_s(512) == pytest.approx(_truth_s(StepWork(0, 0, ((512, 0),))), rel=0.05)
    assert model.decode_s(32, 9000) == pytest.approx(_truth_s(StepWork(32, 9000)), rel=0.05)


def test_a_changed_machine_is_learned_anew() -> None:
    model = StepTimeModel()
    for elapsed_s in (0.01, 0.05):
        for _ in range(600):
            model.observe(StepWork(8, 800), elapsed_s)
    assert model.mean_s == pytest.approx(0.05, rel=0.01)
    assert model.predict_s(StepWork(8, 800)) == pytest.approx(0.05, rel=0.1)


def test_nothing_seen_predicts_nothing() -> None:
    assert StepTimeModel().predict_s(StepWork(10, 100)) == 0.0
    assert StepTimeModel(0.02).mean_s == 0.02
    assert StepTimeModel(0.02).predict_s(StepWork(1, 1)) == 0.02


def test_what_a_worker_measured_first_stands_until_steps_tell_more() -> None:
    model = StepTimeModel(0.02, 0.001)
    assert model.chunk_s(100) == pytest.approx(0.1)
    assert model.prefill_s(100) == pytest.approx(0.12)
    for _ in range(64):
        model.observe(StepWork(4, 400), 0.03)
    assert model.chunk_s(100) == pytest.approx(0.1, rel=0.05)


def test_a_model_written_down_goes_on_as_it_would_have() -> None:
    chance = random.Random(2)
    model = StepTimeModel(0.01)
    for number in range(150):
        if number == 77:
            other = StepTimeModel.restored(model.state())
        work = _some_work(chance)
        model.observe(work, _truth_s(work))
        if number >= 77:
            other.observe(work, _truth_s(work))
    assert other.state() == model.state()


def test_the_rate_of_finishes() -> None:
    rate = FinishRate()
    assert rate.wait_s(3) == 1.0, "nothing is known"
    for second in range(100):
        rate.observe(second * 2.0, 4)
    assert rate.wait_s(3) == pytest.approx(1.5)


def test_finishes_that_come_in_bursts_count_one_by_one() -> None:
    rate = FinishRate()
    for burst in range(50):
        rate.observe(burst * 2.0, 1)
        rate.observe(burst * 2.0 + 0.1, 19)
    assert rate.wait_s(1) == pytest.approx(0.1, rel=0.25)


def test_each_promise_is_a_turn_of_its_own() -> None:
    rate = FinishRate()
    assert [rate.promise_s(0.0, 3, 3) for _ in range(2)] == [1.0, 1.0], "nothing is known"
    for second in range(100):
        rate.observe(second * 2.0, 4)
    promised = [rate.promise_s(200.0, 1, 1) for _ in range(4)]
    assert promised == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert rate.promise_s(200.5, 1, 4) == pytest.approx(3.5), "four places after those"
    assert rate.promise_s(210.0, 2, 2) == pytest.approx(1.0), "all turns are over"
    assert max(rate.promise_s(210.0, 1, 1) for _ in range(1000)) == MOST_PROMISED_S
    rate.resume(211.0)
    assert rate.promise_s(211.0, 1, 1) == pytest.approx(0.5), "nobody came"


def test_idle_time_is_left_out() -> None:
    rate = FinishRate()
    rate.resume(5.0)
    for start_s in (0.0, 1000.0, 2000.0):
        rate.resume(start_s)
        for second in range(5):
            rate.observe(start_s + second, 1)
    assert rate.wait_s(1) <= 1.0
