"""Prices of devices per hour, and requests per second per dollar an hour (Vidur section 6)."""

import tomllib
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from types import MappingProxyType

from daemon.base.files import read_whole
from daemon.cost.profile import Profile
from daemon.lab.planner.errors import PlannerError
from daemon.lab.profiles.load import load_profile
from daemon.lab.simulator.scenario import Scenario

DEFAULT_PRICES: Mapping[str, float] = MappingProxyType(
    {
        "a100-80g": 4.10,  # 32.77 dollars for eight
        "h100": 12.29,  # 98.32 dollars for eight
        "h200": 10.60,  # 84.80 dollars for eight
    }
)
"""Dollars per device-hour, by the profile's device name: an eighth of the pay-as-you-go list price,
about 2025 in a US region, of Azure's virtual machines with eight such devices (ND96amsr A100 v4,
ND96isr H100 v5, ND96isr H200 v5). Prices differ several times over between providers and years:
take these as placeholders and put your own into a `[price]` table."""


def load_prices(path: Path) -> dict[str, float]:
    """The default prices, overridden by a TOML file's `[price]` table.

    An entry is a device's name and its dollars per device-hour, such as `"a100-80g" = 1.80`. Raises
    PlannerError.
    """
    try:
        document = tomllib.loads(read_whole(path).decode())
    except OSError as error:
        raise PlannerError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PlannerError(f"{path}: not TOML: {error}") from error
    given = document.get("price")
    if not isinstance(given, dict):
        raise PlannerError(f"{path}: has no [price] table")
    for device, price in given.items():
        is_number = isinstance(price, int | float) and not isinstance(price, bool)
        if not is_number or not isfinite(price) or price <= 0:
            raise PlannerError(
                f"{path}: price.{device}: must be dollars per device-hour above 0, got {price!r}"
            )
    return {**DEFAULT_PRICES, **{device: float(price) for device, price in given.items()}}


def dollars_per_hour(
    profile: Profile, count: int = 1, prices: Mapping[str, float] = DEFAULT_PRICES
) -> float:
    """The rent of `count` instances of a profile, all their devices. Raises PlannerError."""
    device = profile.device.name
    if device not in prices:
        known = ", ".join(sorted(prices))
        raise PlannerError(
            f"no price for the device {device!r} (known: {known}); "
            f"add it to the [price] table in dollars per device-hour"
        )
    if count < 1:
        raise PlannerError(f"a price is for at least one instance, got {count}")
    return prices[device] * profile.num_devices * count


def rent_per_hour(scenario: Scenario, prices: Mapping[str, float] = DEFAULT_PRICES) -> float:
    """Dollars per hour of all a scenario's instances. Raises PlannerError, ProfileError."""
    return sum(
        dollars_per_hour(load_profile(group.profile), group.count, prices)
        for group in scenario.instance
    )


def qps_per_dollar(rate_rps: float, rent: float) -> float:
    """Requests per second over dollars per hour (Vidur section 6).

    3,600 times as many requests are served for one dollar.
    """
    return rate_rps / rent
