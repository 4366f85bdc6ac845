"""Tests of the worker's process (`daemon/engine/worker`)."""
