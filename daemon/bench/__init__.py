"""`llmd bench`: an open-loop load generator for any OpenAI endpoint, with the simulator's report."""
