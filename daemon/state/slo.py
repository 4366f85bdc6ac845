"""What every answer should keep to (`slo` in the configuration)."""

import msgspec


class Promised(msgspec.Struct, frozen=True):
    """The two promises of an answer."""

    ttft_s: float
    tpot_s: float  # in the mean of an answer
