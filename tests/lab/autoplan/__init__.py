"""Tests of the self-driving plan."""
