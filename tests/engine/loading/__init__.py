"""Tests of the loading of models (`daemon/engine/loading`)."""
