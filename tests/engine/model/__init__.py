"""Tests of whole models and their backends (`daemon/engine/model`)."""
