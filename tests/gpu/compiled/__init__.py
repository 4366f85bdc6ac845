"""Compilation for GPUs that need not be there."""
