"""The warning of a profile that was measured poorly, alike for who makes it and who uses it."""

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
    """The same for profiles by name or path; one that cannot be read is told where it is used."""
    for name in sorted(set(profiles)):
        try:
            warn_of(load_profile(name))
        except ProfileError:
            continue
