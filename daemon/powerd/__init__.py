"""llmd-powerd: a small privileged process that sets GPU power limits, and its client."""
