"""What is chosen: margins, ties, and the way back where a split did worse."""

from daemon.roles.decide import MEASURED, MIXED, Decider, KeptCount
from daemon.roles.forecast import Forecast


def told(choice: str, attainment: float) -> Forecast:
    return Forecast(choice, attainment, attainment, 1.0, 0.1, 0.02, 0.5)


def looked(mixed: float, split: float, present: str = MIXED, cost: float = 0.0) -> str:
    """What two looks after the first half minute come to."""
    decider = Decider()
    decider.begin(0.0)
    told_of = [told(MIXED, mixed), told("1:3", split), told("2:2", split - 0.02)]
    decider.look(30.0, present, told_of, cost)
    return decider.look(35.0, present, told_of, cost).choice


def test_a_split_must_be_better_by_a_margin() -> None:
    assert looked(0.80, 0.95) == "1:3"
    assert looked(0.80, 0.84) == MIXED
    assert looked(0.80, 0.80) == MIXED


def test_a_reason_does_not_begin_with_its_choice() -> None:
    """Screens and notes write the choice before it."""
    decider = Decider()
    decider.begin(0.0)
    decided = decider.look(30.0, MIXED, [told(MIXED, 0.9), told("1:3", 0.9)])
    assert decided.choice == MIXED and decided.why.startswith("no split")


def test_a_good_part_of_what_mixed_misses_is_enough() -> None:
    assert looked(0.92, 0.96) == "1:3"
    assert looked(0.92, 0.95) == MIXED
    assert looked(0.97, 0.985) == MIXED, "0.02 at the least"


def test_of_splits_that_keep_as_much_the_middle_one_is_chosen() -> None:
    decider = Decider()
    decider.begin(0.0)
    kept = {"1:7": 0.4, "2:6": 0.93, "3:5": 0.98, "4:4": 0.984, "5:3": 0.984, "6:2": 0.985}
    told_of = [told(MIXED, 0.9), *(told(*one) for one in kept.items()), told("7:1", 0.0)]
    decider.look(30.0, MIXED, told_of)
    assert decider.look(35.0, MIXED, told_of).choice == "4:4", "6:2 is beside one that keeps none"


def test_what_mixed_was_measured_to_keep_counts_beside_its_forecast() -> None:
    def choice(num: int, kept: int) -> str:
        decider = Decider()
        decider.begin(0.0)
        ended(decider, num, kept, MIXED)
        told_of = [told(MIXED, 0.99), told("1:3", 0.999)]
        decider.look(55.0, MIXED, told_of)
        return decider.look(60.0, MIXED, told_of).choice

    assert choice(270, 250) == "1:3"
    assert choice(4, 3) == MIXED, "few answers tell little"
    assert choice(270, 268) == MIXED


def test_where_nothing_keeps_its_promises_they_are_mixed() -> None:
    assert looked(0.0, 0.5) == MIXED
    assert looked(0.0, 0.5, present="1:3") == MIXED


def test_a_split_that_is_no_better_gives_way_to_mixed() -> None:
    assert looked(0.99, 0.99, present="1:3") == MIXED
    assert looked(0.90, 0.93, present="1:3") == "1:3", "it stays where it would not be chosen anew"


def test_what_a_move_costs_is_asked_for_too() -> None:
    assert looked(0.80, 0.90, cost=0.02) == "1:3"
    assert looked(0.80, 0.90, cost=0.08) == MIXED


def test_one_look_is_not_enough_and_after_a_minute_it_is_over() -> None:
    decider = Decider()
    decider.begin(0.0)
    better = [told(MIXED, 0.5), told("1:3", 0.95)]
    assert decider.look(25.0, MIXED, better).choice == MIXED
    worse = [told(MIXED, 0.95), told("1:3", 0.95)]
    assert decider.look(60.0, MIXED, worse).choice == MIXED
    assert decider.look(65.0, MIXED, better).choice == MIXED, "this load is decided"
    decider.begin(100.0)
    decider.look(125.0, MIXED, better)
    assert decider.look(130.0, MIXED, better).choice == "1:3"


def chosen_split(mixed: float = 0.7) -> Decider:
    decider = Decider()
    decider.begin(0.0)
    forecasts = [told(MIXED, mixed), told("1:3", 0.95)]
    decider.look(30.0, MIXED, forecasts)
    assert decider.look(35.0, MIXED, forecasts).choice == "1:3"
    return decider


def ended(decider: Decider, num: int, kept: int, choice: str, arrived_s: float = 50.0) -> None:
    for count in range(num):
        decider.ended(arrived_s, count < kept, choice)


def test_a_split_that_does_worse_is_given_up_and_rests_twice_as_long_each_time() -> None:
    decider = chosen_split()
    forecasts = [told(MIXED, 0.7), told("1:3", 0.95)]
    ended(decider, MEASURED, MEASURED * 4 // 10, "1:3")
    fallen = decider.look(80.0, "1:3", forecasts)
    assert fallen.choice == MIXED and "0.40 of 40 answers" in fallen.why
    assert decider.state.rest_until_s == 380.0
    decider.begin(100.0)
    for now in (130.0, 135.0, 200.0):
        assert decider.look(now, MIXED, forecasts).choice == MIXED
    decider.begin(400.0)
    decider.look(430.0, MIXED, forecasts)
    assert decider.look(435.0, MIXED, forecasts).choice == "1:3"
    ended(decider, MEASURED, 0, "1:3", 450.0)
    assert decider.look(460.0, "1:3", forecasts).choice == MIXED
    assert decider.state.rest_until_s == 460.0 + 600.0


def test_a_split_that_does_as_well_as_mixed_was_to_stays() -> None:
    decider = chosen_split()
    ended(decider, MEASURED, MEASURED * 7 // 10, "1:3")
    forecasts = [told(MIXED, 0.7), told("1:3", 0.95)]
    assert decider.look(80.0, "1:3", forecasts).choice == "1:3"


def test_a_few_answers_of_a_young_load_do_not_say_what_mixed_would_keep() -> None:
    decider = Decider()
    decider.begin(0.0)
    forecasts = [told(MIXED, 0.8), told("1:3", 0.95)]
    ended(decider, MEASURED, MEASURED, MIXED, 10.0)
    decider.look(30.0, MIXED, forecasts)
    assert decider.look(35.0, MIXED, forecasts).choice == "1:3"
    ended(decider, 2 * MEASURED, MEASURED * 17 // 10, "1:3")
    assert decider.look(80.0, "1:3", forecasts).choice == "1:3"
    ended(decider, 400, 300, "1:3")
    assert decider.look(90.0, "1:3", forecasts).choice == MIXED


def test_what_came_before_the_change_is_not_counted_for_it() -> None:
    decider = chosen_split()
    ended(decider, MEASURED, 0, "1:3", arrived_s=36.0)
    assert decider.measured("1:3") == KeptCount()


def test_mixed_that_does_badly_gets_one_late_split() -> None:
    decider = Decider()
    decider.begin(0.0)
    forecasts = [told(MIXED, 0.97), told("1:3", 0.98)]
    decider.look(60.0, MIXED, forecasts)
    assert decider.state.is_settled
    ended(decider, 100, 70, MIXED)
    assert decider.look(90.0, MIXED, forecasts).choice == "1:3"
    ended(decider, 100, 50, "1:3", 100.0)
    assert decider.look(140.0, "1:3", forecasts).choice == MIXED
    ended(decider, 400, 100, MIXED, 150.0)
    for now in (500.0, 1000.0, 5000.0):
        assert decider.look(now, MIXED, forecasts).choice == MIXED, "once for a load"


def test_what_mixed_was_to_keep_of_another_load_says_nothing_of_this_one() -> None:
    decider = chosen_split(mixed=0.7)
    decider.begin(100.0)
    heavier = [told(MIXED, 0.3), told("1:3", 0.65)]
    ended(decider, MEASURED, MEASURED // 2, "1:3", arrived_s=110.0)
    assert decider.look(130.0, "1:3", heavier).choice == "1:3", "mixed would keep 0.3, not 0.7"
    ended(decider, 9 * MEASURED, 0, "1:3", arrived_s=135.0)
    assert decider.look(150.0, "1:3", heavier).choice == MIXED


def test_while_no_split_is_tried_roles_that_no_choice_has_become_mixed() -> None:
    decider = chosen_split()
    forecasts = [told(MIXED, 0.7), told("1:3", 0.95)]
    ended(decider, MEASURED, 0, "1:3")
    assert decider.look(80.0, "1:3", forecasts).choice == MIXED
    decider.begin(100.0)  # one comes back that was a prefill instance when its worker died
    assert decider.look(130.0, "", forecasts).choice == MIXED
    ended(decider, 3, 0, MIXED, arrived_s=131.0)
    assert decider.measured(MIXED) == KeptCount(), "it changed then"


def test_a_load_that_is_decided_stays_so_while_mixed_does_badly() -> None:
    decider = Decider()
    decider.begin(0.0)
    alike = [told(MIXED, 0.95), told("1:3", 0.95)]
    decider.look(25.0, "1:3", alike)
    assert decider.look(30.0, "1:3", alike).choice == MIXED
    ended(decider, MEASURED, MEASURED // 2, MIXED)
    poor = [told(MIXED, 0.5), told("1:3", 0.5)]
    assert decider.look(40.0, MIXED, poor).choice == MIXED
    assert decider.state.is_settled


def test_a_split_that_was_given_up_does_not_come_again_under_the_same_load() -> None:
    decider = chosen_split()
    forecasts = [told(MIXED, 0.7), told("1:3", 0.95)]
    ended(decider, MEASURED, 0, "1:3")
    assert decider.look(80.0, "1:3", forecasts).choice == MIXED
    ended(decider, 10 * MEASURED, MEASURED, MIXED, arrived_s=90.0)
    for now in (400.0, 405.0, 1000.0, 1005.0):
        assert decider.look(now, MIXED, forecasts).choice == MIXED
    decider.begin(1010.0)
    decider.look(1040.0, MIXED, forecasts)
    assert decider.look(1045.0, MIXED, forecasts).choice == "1:3", "another load"
