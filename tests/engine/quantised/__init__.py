"""Tests of weights in quantised blocks (`daemon/engine/quantised`)."""
