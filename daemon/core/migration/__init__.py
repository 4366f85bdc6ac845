"""Sequences that go from one instance to another: transfers, flips, and the pace they keep."""
