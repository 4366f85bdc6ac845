"""Tests of what computes on a CPU (`daemon/engine/cpu`)."""
