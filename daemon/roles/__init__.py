"""The choice of roles: which instances prefill, decode or do both, by the load. Pure."""
