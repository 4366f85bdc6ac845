"""Tests of layers (`daemon/engine/layers`)."""
