"""Tests of steps (`daemon/engine/step`)."""
