"""Workloads: requests and their times, from real traces, published tables and arrival processes."""
