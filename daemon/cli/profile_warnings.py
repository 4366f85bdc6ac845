"""The warning of a poorly measured profile, for `llmd profile` and `llmd simulate`."""

import sys
from collections.abc import Iterable

from daemon.cost.profile import Profile
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.load import load_profile


def warn_of(profile: Profile) -> None:
    """Say on stderr what a profile lacks, if it lacks anything."""
    for lack in profile.fit.lacks:
        print(f"llmd: {profile.name} was measured poorly: {lack}", file=sys.stderr)
    if profile.fit.lacks:
        print("llmd: simulations with it may be far from the truth", file=sys.stderr)


def warn_of_named(profiles: Iterable[str]) -> None:
    """The same for profiles by name or path; an unreadable one is reported where it is used."""
    for name in sorted(set(profiles)):
        try:
            warn_of(load_profile(name))
        except ProfileError:
            continue
