"""Messages between the API process and its predictor process: one frozen, tagged struct each.

API -> predictor: `Ask` for each request, later one `Ended` for it.
Predictor -> API: one `Estimate` for each `Ask`, in the order of the asks.
The end of the channel ends the predictor; it saves what it has learned.
"""

import msgspec


class Ask(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Ask how long the answer to a prompt will be."""

    request: int  # id, chosen by the API process, never reused
    text: str  # the prompt, or the parts to read of a long one
    num_prompt_tokens: int
    max_tokens: int  # the client's limit


class Ended(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A request that was asked about is over: learn from it, then forget it.

    An answer as long as its limit was cut there: it teaches a lower bound.
    """

    request: int
    num_output_tokens: int  # mean of its streams; 0: it was aborted, there is nothing to learn


class Estimate(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The predicted length of an answer."""

    request: int
    num_tokens: int  # of output, the median of what may come; 0: it cannot be said
    high_tokens: int  # nine answers in ten are no longer
    took_s: float  # the predictor's time, waiting excluded


ToPredictor = Ask | Ended
