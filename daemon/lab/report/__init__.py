"""Measures of a finished run, real or simulated: one record, one report, many ways to show it.

TTFT is from arrival to the first token. TPOT = (last - first) / (n - 1), for n > 1. TBT is each gap
between tokens; a request's longest gap is the largest of them. JCT is from arrival to the last
token; normalised latency is JCT / n. Queueing is from arrival to the first place in a batch. Paused
is the time after the first token in which an answer did not go on. The Core knows it
(`daemon/state/pause.py`). A client sees gaps alone: there it is each long gap's excess over the
run's median gap, and long is over 4 times that median and over 0.1 s. Goodput counts requests that
met every promise of their class.
"""
