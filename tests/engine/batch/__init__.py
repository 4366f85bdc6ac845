"""Tests of the columns of a step (`daemon/engine/batch`)."""
