"""Who is placed anew once predictions turn out wrong, and who stays because an operator said so."""

from collections.abc import Callable

import pytest

from daemon.state.request import sequence_id
from daemon.state.story import What
from tests.core.driver import Driver, configured
from tests.placement.made import model


class OutrunHome:
    """Of two instances the first runs an answer far beyond its prediction, the second one that is
    predicted to be long; the prompt of a third request waits for the first one's next step.
    """

    def __init__(self, orders: bool = False) -> None:
        self.driver = driver = Driver(configured(instances=2, placement="aladdin"), 64)
        driver.link_all()
        for one in driver.core.instances:
            one.scheduler.order.step_time = model(base_s=0.001, row_s=0.001, context_s=1e-6)
        self._arrive(1, prompt=30, answer=2)
        self.long = self._arrive(0, prompt=5, answer=60)
        for _ in range(20):
            driver.answer(0)
            driver.answer(1)
        self.waits = self._arrive(0 if orders else 1, prompt=4, answer=5)
        if orders:
            driver.move(sequence_id(self.waits, 0), 0)
        assert self.home == 0

    @property
    def home(self) -> int:
        """Where the third one is."""
        return self.driver.core.sequences[sequence_id(self.waits, 0)].instance

    def _arrive(self, not_at: int, prompt: int, answer: int) -> int:
        self.driver.drain_one(not_at)
        request = self.driver.arrive([self.driver.requests] * prompt, 80)
        self.driver.predict(request, answer)
        self.driver.resume_one(not_at)
        return request


ENDS: dict[str, Callable[[OutrunHome], object]] = {
    "in a step": lambda here: here.driver.answer(1, stops=frozenset({0})),
    "at a stop string": lambda here: here.driver.finish(sequence_id(here.long, 0)),
    "as its client goes": lambda here: here.driver.abort(here.long),
}


@pytest.mark.parametrize("end", ENDS)
def test_who_waits_where_answers_run_on_goes_where_one_ended_early(end: str) -> None:
    here = OutrunHome()
    ENDS[end](here)
    assert here.home == 1
    sequence = here.driver.core.sequences[sequence_id(here.waits, 0)]
    assert [what for _, what, *_ in sequence.story.marks].count(What.MOVED) == 1
    here.driver.settle()
    here.driver.check_nothing_left()


@pytest.mark.parametrize("end", ENDS)
def test_it_stays_where_an_operator_sent_it(end: str) -> None:
    here = OutrunHome(orders=True)
    ENDS[end](here)
    assert here.home == 0
    here.driver.settle()
    here.driver.check_nothing_left()


def test_a_prediction_does_not_undo_an_order() -> None:
    driver = Driver(configured(instances=2, placement="jsq"), 64)
    for answer in (60, 4):
        driver.predict(driver.arrive([answer] * 9, 80), answer)
    request = driver.arrive([3] * 9, 80)
    sequence = driver.core.sequences[sequence_id(request, 0)]
    assert sequence.instance == 1
    driver.move(sequence.id, 0)
    driver.predict(request, 60)
    assert sequence.instance == 0
    driver.settle()
    driver.check_nothing_left()


def test_room_elsewhere_does_not_undo_an_order_and_a_lost_worker_does() -> None:
    driver = Driver(configured(instances=2, max_running=1), 64)
    ends = {
        driver.core.sequences[sequence_id(driver.arrive([n] * 9, 60), 0)].instance for n in (1, 2)
    }
    assert ends == {0, 1}
    sequence = driver.core.sequences[sequence_id(driver.arrive([3] * 9, 8), 0)]
    ordered = 1 - sequence.instance
    driver.move(sequence.id, ordered)
    driver.answer(1 - ordered, stops=frozenset({0}))
    assert sequence.instance == ordered and sequence.slot < 0
    driver.lose(ordered)
    assert sequence.instance == 1 - ordered
    driver.ready(ordered, 64)
    driver.settle()
    driver.check_nothing_left()
