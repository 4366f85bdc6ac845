"""An expected error as one sentence."""


class UsageError(Exception):
    """Flags that do not go together, or a value that cannot be: told in a sentence, status 2."""


def told(error: Exception) -> str:
    """What the error says, without Python's own way of writing an error of the system."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return "there is not enough memory for that"
    return " ".join(str(error).split()) or type(error).__name__
