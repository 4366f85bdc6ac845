"""Tests of the engine worker and of the models that it loads."""

from daemon.engine.process import share_cores

share_cores()
