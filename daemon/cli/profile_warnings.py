"""The warning of a poorly measured profile, for `llmd profile` and `llmd simulate`."""

import sys
from collections.abc import Iterable

from daemon.cost.profile import Profile
from daemon.lab.profiles.doubts import doubts
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.load import load_profile


def warn_of(profile: Profile, times: str = "") -> None:
    """Say on stderr why to doubt a profile's step times, if there is a reason; `times` as in
    `chosen`.
    """
    reasons = doubts(profile, times)
    for reason in reasons:
        print(f"llmd: {profile.name} was measured poorly: {reason}", file=sys.stderr)
    if reasons:
        print("llmd: simulations with it may be far from the truth", file=sys.stderr)


def warn_of_named(profiles: Iterable[str], times: str = "") -> None:
    """The same for profiles by name or path; an unreadable one is reported where it is used."""
    for name in sorted(set(profiles)):
        try:
            warn_of(load_profile(name), times)
        except ProfileError:
            continue
