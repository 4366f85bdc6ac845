"""Tests of the engine worker and of the models that it loads."""
