"""Tests of recurrent layers (`daemon/engine/layers/recurrent`)."""
