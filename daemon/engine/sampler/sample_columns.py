"""Columns of the tables that kernels sample by: rules float64 [R, 4], edits int64 [R, 13]."""

RULE_COLUMNS = 4
INVERSE, TOP_K, TOP_P, FARTHEST = range(RULE_COLUMNS)
"""1 / temperature (0: greedy), how many tokens stay (0: all), which share of the rest, and how far
below the best logit (infinite: at any distance).
"""

EDIT_COLUMNS = 13
HISTORY, KNOWN, PROMPT = range(3)
"""The address of all tokens so far, int64 (0: nothing counts them), how many, and of the prompt."""
BIAS_IDS, BIAS, NUM_BIAS = range(3, 6)
"""The addresses of ids int64 and of what is added to their logits, float32; how many."""
ENDS, NUM_ENDS, UNTIL, POSITION = range(6, 10)
"""The address of ids int64 that may not be sampled before the position `UNTIL`; how many; the
position of the token to be sampled.
"""
REPETITION, PRESENCE, FREQUENCY = range(10, EDIT_COLUMNS)
"""Penalties, the bits of float64."""
