"""What a short mean costs in long pauses: mean latency against the longest gap, by policy."""
