"""Tests of the laboratory: each folder is a suite of its own."""
