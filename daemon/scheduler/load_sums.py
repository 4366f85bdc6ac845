"""Sums over the sequences at one place of an instance, which placement asks for."""

HEAVY_TOKENS = 128
"""An answer that is likely to be longer is a heavy one (TetriInfer, section 5.1)."""


def is_heavy(num_prompt_tokens: int, likely_length: int) -> bool:
    """Whether a sequence of these lengths has a heavy answer."""
    return likely_length - num_prompt_tokens > HEAVY_TOKENS


class LoadSums:
    """Of those that have slots, or of those that wait; each is added and removed as it was then."""

    __slots__ = ("likely_tokens", "num_heavy", "prompt_tokens")

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.likely_tokens = 0  # their likely lengths
        self.num_heavy = 0  # of them, those with likely long answers

    def add(self, num_prompt_tokens: int, likely_length: int) -> None:
        """One comes."""
        self.prompt_tokens += num_prompt_tokens
        self.likely_tokens += likely_length
        self.num_heavy += likely_length - num_prompt_tokens > HEAVY_TOKENS

    def remove(self, num_prompt_tokens: int, likely_length: int) -> None:
        """One goes, that was added with the same numbers."""
        self.prompt_tokens -= num_prompt_tokens
        self.likely_tokens -= likely_length
        self.num_heavy -= likely_length - num_prompt_tokens > HEAVY_TOKENS
