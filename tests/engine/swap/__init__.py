"""Tests of copies between a worker's pool and its host pool (`daemon/engine/swap`)."""
