"""Workloads: who asks for what, when; from real traces, published tables and arrival processes."""
