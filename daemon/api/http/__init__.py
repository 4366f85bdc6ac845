"""HTTP as such: connections, limits, keys and accounts."""
