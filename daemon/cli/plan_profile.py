"""The profile that `plan.auto` simulates with: it is read before anything starts.

Without one the planner process could only say, look by look, why it makes no plan.
"""

from daemon.config.schema import Config

KEY = "plan.profile"


def profile_fault(config: Config) -> str:
    """Why `plan.profile` cannot be read; empty: it can, or nothing plans."""
    if not config.plan.auto:
        return ""
    from daemon.lab.profiles.errors import ProfileError  # here: others need nothing of the lab
    from daemon.lab.profiles.load import load_profile

    try:
        load_profile(config.plan.profile)
    except ProfileError as error:
        return str(error)
    return ""
