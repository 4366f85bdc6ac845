"""Prices by device, their overrides, and requests per second for a dollar an hour."""

from pathlib import Path

import msgspec
import pytest

from daemon.lab.planner.errors import PlannerError
from daemon.lab.planner.price import (
    DEFAULT_PRICES,
    dollars_per_hour,
    load_prices,
    qps_per_dollar,
    rent_per_hour,
)
from tests.lab.planner.small import profile, scenario


def test_capacity_over_the_rent_of_all_devices() -> None:
    pair = msgspec.structs.replace(profile(), tp=2, pp=2)
    prices = {"a100-80g": 2.5}
    assert dollars_per_hour(pair, 3, prices) == 30.0
    assert qps_per_dollar(6.0, 30.0) == 0.2


def test_a_scenario_pays_for_all_its_instances(tmp_path: Path) -> None:
    one = scenario(tmp_path, 1)
    group = msgspec.structs.replace(one.instance[0], count=3)
    many = msgspec.structs.replace(one, instance=(group, one.instance[0]))
    assert rent_per_hour(many, {"a100-80g": 2.5}) == 10.0
    with pytest.raises(PlannerError, match="no price for the device 'a100-80g'"):
        rent_per_hour(many, {"h100": 1.0})


def test_a_file_overrides_the_defaults_and_adds_to_them(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text('[price]\n"a100-80g" = 2\nours = 0.5\n')
    prices = load_prices(file)
    assert prices == {**DEFAULT_PRICES, "a100-80g": 2.0, "ours": 0.5}
    assert dollars_per_hour(profile(device="ours"), prices=prices) == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[price]\nh100 = 0\n", "price.h100: must be dollars per device-hour above 0, got 0"),
        ("[price]\nh100 = true\n", "got True"),
        ("[price]\nh100 = inf\n", "got inf"),
        ('[price]\nh100 = "2"\n', "got '2'"),
        ("price = 2\n", r"has no \[price\] table"),
        ("[price\n", "not TOML"),
    ],
)
def test_a_bad_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(PlannerError, match=message):
        load_prices(file)


def test_what_has_no_price_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match=r"'cpu'.*known: a100-80g, h100, h200"):
        dollars_per_hour(profile(device="cpu"))
    with pytest.raises(PlannerError, match="at least one instance, got 0"):
        dollars_per_hour(profile(), 0)
    with pytest.raises(PlannerError, match="No such file"):
        load_prices(tmp_path / "none.toml")
