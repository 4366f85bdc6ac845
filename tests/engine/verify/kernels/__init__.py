"""Tests of the self-test of a GPU's kernels (`daemon/engine/verify/kernels`)."""
