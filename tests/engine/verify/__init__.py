"""Tests of what is tried before anything is served (`daemon/engine/verify`)."""
