"""An expected error as one sentence."""


class UsageError(Exception):
    """Flags that contradict each other, or an impossible value: one sentence, status 2."""


def error_text(error: Exception) -> str:
    """The error's message in one line, without Python's own way of writing an OSError."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return "there is not enough memory for that"
    return " ".join(str(error).split()) or type(error).__name__
