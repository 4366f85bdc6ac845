"""Tests of what computes on GPUs (`daemon/engine/cuda`)."""
