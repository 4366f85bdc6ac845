"""The SLO that every answer should meet (`slo` in the configuration)."""

import msgspec


class Slo(msgspec.Struct, frozen=True):
    """The service level objective of an answer."""

    ttft_s: float
    tpot_s: float  # in the mean of an answer
