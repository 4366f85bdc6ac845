"""What an operator does to a running Core: drain and take again, other limits."""

from daemon.core.core import Core
from daemon.core.values.events import Reconfigured
from tests.core.driver import Driver, configured


def test_a_drained_core_finishes_what_it_has_and_takes_nothing_until_it_is_resumed() -> None:
    driver = Driver(configured(), 64)
    running = driver.arrive([1, 2, 3], 8)
    driver.drain()
    refused = driver.arrive([1, 2, 3], 8)
    assert driver.rejected[refused].kind == "draining"
    driver.settle()
    assert len(driver.ended) == 1 and driver.num_outputs(running) == 8
    driver.resume()
    taken = driver.arrive([1, 2, 3], 8)
    driver.settle()
    assert taken not in driver.rejected and len(driver.ended) == 2
    driver.check_nothing_left()


def test_a_shorter_queue_refuses_newcomers_and_loses_nobody() -> None:
    driver = Driver(configured(max_running=1, max_waiting=8), 64)
    for _ in range(6):
        driver.arrive([1, 2, 3], 4)
    waiting = driver.core.num_waiting
    driver.reconfigure(2, 0.3)
    assert driver.core.num_waiting == waiting > 2
    assert driver.rejected[driver.arrive([1, 2, 3], 4)].kind == "queue_full"
    driver.reconfigure(64, 0.3)
    assert driver.arrive([1, 2, 3], 4) not in driver.rejected
    driver.settle()
    assert len(driver.ended) == 7


def test_patience_changes_for_those_who_wait_already() -> None:
    """A long job beside a stream of short ones: how many steps it gets depends on patience."""

    def outputs(starve_s: float, changed_s: float) -> int:
        config = configured("mlfq", max_running=1, starve_s=starve_s)
        driver = Driver(config, 64, step_s=0.001, num_host_blocks=400)
        long = driver.arrive(list(range(40)), 60)
        driver.reconfigure(1000, changed_s)
        for _ in range(150):
            if driver.core.num_waiting < 3:
                driver.arrive([1], 1)
            driver.answer()
        return driver.num_outputs(long)

    patient, eager = outputs(100.0, 100.0), outputs(0.005, 0.005)
    assert eager > patient
    assert outputs(100.0, 0.005) == eager


def test_limits_are_the_cores_own() -> None:
    config = configured()
    core = Core(config)
    core.handle(Reconfigured(0.0, 3, 0.01))
    assert (core.config.max_waiting, core.config.starve_s) == (3, 0.01)
    assert core.instances[0].scheduler.order.starve_s == 0.01
    assert config.max_waiting == 1000, "what the Core was built with is the journal's"
