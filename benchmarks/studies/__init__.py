"""Studies in the simulator: each compares ways to serve under one question."""
