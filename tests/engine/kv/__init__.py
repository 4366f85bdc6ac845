"""Tests of pools of keys and values (`daemon/engine/kv`)."""
