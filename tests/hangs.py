"""How long a test waits for what is sure to come: on the busiest machine only a hang takes so long.

Where the time itself is what is tested, a test counts looks, waits or calls, or holds the clock.
"""

HANG_S = 120.0
