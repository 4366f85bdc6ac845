"""Messages between the API process and its predictor process: one frozen, tagged struct each.

API -> predictor: `Ask` for each request, later one `Ended` for it.
Predictor -> API: one `Estimate` for each `Ask`, in the order of the asks.
The end of the channel ends the predictor; it saves what it has learned.
"""

import msgspec


class Ask(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """How long will the answer to this be?"""

    request: int  # id, chosen by the API process, never reused
    text: str  # the prompt, or what is to be read of a long one
    num_prompt_tokens: int
    max_tokens: int  # the client's limit


class Ended(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A request that was asked about is over; it is learned from, then forgotten.

    An answer as long as its limit was cut there: it teaches that it is at least so long.
    """

    request: int
    num_output_tokens: int  # mean of its streams; 0: it was broken off, there is nothing to learn


class Estimate(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """How long the answer will be."""

    request: int
    num_tokens: int  # of output, the median of what may come; 0: it cannot be said
    high_tokens: int  # nine answers in ten are no longer
    took_s: float  # the predictor's time, waiting excluded


ToPredictor = Ask | Ended
