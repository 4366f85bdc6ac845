"""`llmd bench`: an open-loop load generator for any OpenAI endpoint; its report is the simulator's.

Open loop: a request leaves at its arrival time, whether or not earlier ones have ended.
"""
