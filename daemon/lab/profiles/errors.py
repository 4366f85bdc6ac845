"""The error of profiles."""


class ProfileError(ValueError):
    """A profile or a table cannot be used; the message names the file and the fault."""
