"""Plans that are made, kept and undone, by forecasts and measured shares alone."""

import pytest

from daemon.lab.autoplan.pilot import AppliedPlan, Pilot, SettingsForecast
from daemon.lab.autoplan.settings import LiveSettings
from daemon.state.role import Role

HERE = LiveSettings(policy="vllm", roles=(Role.MIXED, Role.MIXED))
OTHER = LiveSettings(policy="sarathi", roles=(Role.MIXED, Role.MIXED))


def forecasts(here: tuple[float, ...], other: tuple[float, ...]) -> list[SettingsForecast]:
    return [
        SettingsForecast(settings=HERE, shares=here),
        SettingsForecast(settings=OTHER, shares=other),
    ]


def applied(pilot: Pilot) -> AppliedPlan:
    assert pilot.plan is not None
    return pilot.plan


@pytest.mark.parametrize(
    ("here", "other", "is_chosen"),
    [
        ((0.7, 0.7, 0.7), (0.9, 0.9, 0.9), True),
        ((0.7, 0.8, 0.6), (0.9, 0.95, 0.85), True),  # alike slices are compared, not all with all
        ((0.7, 0.7, 0.7), (0.71, 0.71, 0.71), False),  # too little
        ((0.7, 0.7, 0.7), (0.9, 0.72, 0.6), False),  # less than its spread
        ((0.4, 0.1, 0.0), (0.9, 0.6, 0.05), True),  # in overload slices differ, and none loses
        ((0.4, 0.1, 0.1), (0.9, 0.6, 0.05), False),
        ((0.7, 0.7, 0.7), (0.6, 0.6, 0.6), False),
    ],
)
def test_only_a_sure_gain_is_applied(
    here: tuple[float, ...], other: tuple[float, ...], is_chosen: bool
) -> None:
    pilot = Pilot(HERE)
    assert pilot.choose(10.0, 0.6, forecasts(here, other)) == (OTHER if is_chosen else None)
    assert pilot.present == (OTHER if is_chosen else HERE)
    assert pilot.on_trial is is_chosen


def test_a_prediction_is_what_was_measured_and_the_simulated_gain() -> None:
    pilot = Pilot(HERE)
    pilot.choose(10.0, 0.6, forecasts((0.7, 0.7), (0.9, 0.9)))
    assert applied(pilot).predicted == pytest.approx(0.8)
    pilot = Pilot(HERE)
    pilot.choose(10.0, 0.95, forecasts((0.7, 0.7), (0.9, 0.9)))
    assert applied(pilot).predicted == 1.0


def test_a_plan_that_comes_out_worse_is_undone_and_not_tried_again() -> None:
    pilot = Pilot(HERE)
    pilot.choose(10.0, 0.6, forecasts((0.7, 0.7), (0.9, 0.9)))
    assert pilot.judge(50.0, 0.55, 1000)
    assert pilot.present == HERE and applied(pilot).state == "undone"
    assert not pilot.may_try(OTHER)
    pilot.load_changed(55.0)
    assert pilot.may_try(OTHER)


def test_a_trial_goes_on_while_a_backlog_from_before_waits() -> None:
    """It takes the first requests under any settings; but what is worse than before is undone."""
    for measured, is_undone in ((0.6, False), (0.59, False), (0.5, True)):
        pilot = Pilot(HERE)
        pilot.choose(10.0, 0.6, forecasts((0.7, 0.7), (0.9, 0.9)))
        assert pilot.judge(50.0, measured, 1000, backlog_waits=True) is is_undone
        assert pilot.on_trial is not is_undone
    assert pilot.present == HERE
    pilot = Pilot(HERE)
    pilot.choose(10.0, 0.6, forecasts((0.7, 0.7), (0.9, 0.9)))
    assert not pilot.judge(50.0, 0.6, 1000, backlog_waits=True)
    assert pilot.judge(50.0, 0.6, 1000)


@pytest.mark.parametrize(
    ("measured", "num"),
    [
        (0.8, 1000),  # as predicted
        (0.79, 1000),  # within the margin
        (0.65, 1000),  # less than predicted, but better than before
        (0.6, 10),  # ten requests tell nothing
    ],
)
def test_a_plan_is_kept_unless_it_is_surely_worse(measured: float, num: int) -> None:
    pilot = Pilot(HERE)
    pilot.choose(10.0, 0.6, forecasts((0.7, 0.7), (0.9, 0.9)))
    assert not pilot.judge(50.0, measured, num)
    assert pilot.present == OTHER and applied(pilot).state == "kept"
    assert not pilot.judge(50.0, 0.1, 1000)  # it is judged once


def test_another_load_leaves_a_plan_without_judgement() -> None:
    pilot = Pilot(HERE)
    pilot.choose(10.0, 0.6, forecasts((0.7, 0.7), (0.9, 0.9)))
    pilot.load_changed(55.0)
    assert applied(pilot).state == "outdated"
    assert not pilot.judge(50.0, 0.1, 1000) and pilot.present == OTHER


def test_what_a_new_load_refutes_before_it_is_known_stays_refuted() -> None:
    pilot = kept_plan()
    assert pilot.withdraw(60.0, 0.3, 30)
    pilot.load_changed(58.0)
    assert not pilot.may_try(OTHER)
    pilot.load_changed(61.0)
    assert pilot.may_try(OTHER)


def kept_plan() -> Pilot:
    """A plan that its period has borne out; 60 % kept both SLOs before it."""
    pilot = Pilot(HERE)
    pilot.choose(10.0, 0.6, forecasts((0.7, 0.7), (0.9, 0.9)))
    assert not pilot.judge(50.0, 0.8, 1000)
    return pilot


def test_a_plan_that_serves_the_next_load_worse_than_none_did_is_withdrawn() -> None:
    """Before the change of the load is told, or behind it; on trial its period judges."""
    pilot = kept_plan()
    assert not pilot.withdraw(60.0, 0.59, 10_000)  # within the margin
    assert not pilot.withdraw(60.0, 0.3, 10)  # ten requests tell nothing
    assert not pilot.withdraw(60.0, 0.55, 30)  # chance
    assert pilot.withdraw(60.0, 0.3, 30)
    assert pilot.present == HERE and applied(pilot).state == "undone"
    assert applied(pilot).measured == 0.3 and not pilot.may_try(OTHER)
    assert not pilot.withdraw(60.0, 0.1, 1000)  # nothing is left to undo

    pilot = Pilot(HERE)
    pilot.choose(10.0, 0.6, forecasts((0.7, 0.7), (0.9, 0.9)))
    assert not pilot.withdraw(60.0, 0.0, 1000)
    pilot.load_changed(55.0)
    assert pilot.withdraw(60.0, 0.0, 1000) and pilot.present == HERE


def test_what_an_operator_chose_is_never_withdrawn() -> None:
    pilot = kept_plan()
    pilot.operator_chose(OTHER)
    assert not pilot.withdraw(60.0, 0.0, 1000)
    assert pilot.present == OTHER


def test_what_the_daemon_flipped_by_itself_is_not_withdrawn_behind_a_plan_that_was_undone() -> None:
    pilot = kept_plan()
    assert pilot.withdraw(60.0, 0.3, 30) and pilot.present == HERE
    flipped = LiveSettings(policy="vllm", roles=(Role.MIXED, Role.PREFILL))
    pilot.daemon_flipped(flipped)
    assert not pilot.withdraw(60.0, 0.0, 1000) and pilot.present == flipped

    pilot = kept_plan()
    pilot.daemon_flipped(flipped)  # while the plan is in force
    assert pilot.withdraw(60.0, 0.0, 1000) and pilot.present == HERE
