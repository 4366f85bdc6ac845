"""The offered load, in the few numbers that a choice of roles depends on."""

from functools import cached_property

import msgspec

COUNTED = 64
"""Most samples of each kind that forecasts use."""


class OfferedLoad(msgspec.Struct, frozen=True, dict=True):
    """A constant load. Samples stand for all: each is as likely as the others. Derived values are
    computed once, for many forecasts.
    """

    rate_rps: float  # requests a second
    prompts: tuple[int, ...]  # tokens, cached ones included
    answers: tuple[int, ...]  # tokens; see `likely_answers`
    answer_tokens: float  # the mean, unended answers included
    answered: tuple[int, ...] = ()  # tokens of the prompts of `answers`; empty: as all prompts
    answers_per_request: float = 1.0
    cached_share: float = 0.0  # of the prompts' tokens

    @property
    def answer_rate(self) -> float:
        """Answers per second."""
        return self.rate_rps * self.answers_per_request

    @cached_property
    def computed_prompts(self) -> tuple[float, ...]:
        """The uncached tokens of prompts, of COUNTED prompts at most."""
        kept = 1.0 - self.cached_share
        return _thinned(tuple(max(1.0, kept * prompt) for prompt in self.prompts))

    @cached_property
    def prompt_tokens(self) -> float:
        """Mean tokens of a prompt, cached ones included."""
        return sum(self.prompts) / len(self.prompts)

    @cached_property
    def few_lengths(self) -> tuple[float, ...]:
        """At most COUNTED of the lengths."""
        return _thinned(self.lengths)

    @cached_property
    def lengths(self) -> tuple[float, ...]:
        """Answers' lengths with the right mean."""
        scale = self.answer_tokens * len(self.answers) / max(1, sum(self.answers))
        return tuple(max(1.0, scale * answer) for answer in self.answers)

    @cached_property
    def decode_context(self) -> float:
        """Tokens that a row of a decode step attends to, on average over steps: long answers have
        more of them, and may be those to long prompts.
        """
        lengths = self.lengths
        squares = sum(length * length for length in lengths) / len(lengths)
        return self._decode_prompt + squares / (2.0 * self.answer_tokens)

    @property
    def _decode_prompt(self) -> float:
        """Tokens of a row's prompt, on average over steps."""
        if not self.answered:
            return self.prompt_tokens
        pairs = zip(self.answered, self.answers, strict=True)
        return sum(prompt * answer for prompt, answer in pairs) / sum(self.answers)


def _thinned(values: tuple[float, ...]) -> tuple[float, ...]:
    """At most COUNTED of the values, in order of size, with equal steps between."""
    if len(values) <= COUNTED:
        return values
    ordered = sorted(values)
    return tuple(ordered[int((i + 0.5) * len(ordered) / COUNTED)] for i in range(COUNTED))
