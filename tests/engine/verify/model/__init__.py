"""Tests of the trial of a model (`daemon/engine/verify/model`)."""
