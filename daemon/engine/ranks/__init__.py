"""Ranks: the worker processes of one instance, each with a share of the model."""
