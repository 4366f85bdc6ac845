"""Workloads: traces, distributions, arrivals, classes."""
