"""Tests of transfers of KV between workers (`daemon/engine/transfer`)."""
