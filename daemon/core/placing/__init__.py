"""Placing of new requests: which are accepted, and the instance that gets each."""
