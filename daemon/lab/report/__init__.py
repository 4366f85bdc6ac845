"""Measures of a finished run, real or simulated: one record, one report, many ways to show it.

TTFT is from arrival to the first token. TPOT = (last - first) / (n - 1), for n > 1. TBT is each gap
between tokens. JCT is from arrival to the last token; normalised latency is JCT / n. Queueing is
from arrival to the first place in a batch. Goodput counts requests that met every promise of their
class at once.
"""
