"""The CPU's own kernels: compiled by numba, run by the threads that torch computes with."""
