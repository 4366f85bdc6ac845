"""Tests of what model folders and files say (`daemon/models`)."""
