"""The whole daemon, started as a user starts it and driven by real clients."""
