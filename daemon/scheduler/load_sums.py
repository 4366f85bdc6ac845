"""Sums over the running or the waiting sequences of an instance, for placement."""

HEAVY_TOKENS = 128
"""An answer that is likely to be longer is heavy (TetriInfer, section 5.1)."""


def is_heavy(num_prompt_tokens: int, likely_length: int) -> bool:
    """Whether a sequence of these lengths has a heavy answer."""
    return likely_length - num_prompt_tokens > HEAVY_TOKENS


class LoadSums:
    """Sums of lengths; each sequence is added and removed with the same numbers."""

    __slots__ = ("likely_tokens", "num_heavy", "prompt_tokens")

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.likely_tokens = 0  # their likely lengths
        self.num_heavy = 0  # sequences with likely long answers

    def add(self, num_prompt_tokens: int, likely_length: int) -> None:
        """Add a sequence."""
        self.prompt_tokens += num_prompt_tokens
        self.likely_tokens += likely_length
        self.num_heavy += likely_length - num_prompt_tokens > HEAVY_TOKENS

    def remove(self, num_prompt_tokens: int, likely_length: int) -> None:
        """Remove a sequence that was added with the same numbers."""
        self.prompt_tokens -= num_prompt_tokens
        self.likely_tokens -= likely_length
        self.num_heavy -= likely_length - num_prompt_tokens > HEAVY_TOKENS
