"""Sampling the next tokens of a batch: edits, filters, draws and log-probabilities."""

from daemon.engine.sampler.drafted import Drafted
from daemon.engine.sampler.drawn import Drawn, Draws
from daemon.engine.sampler.sampler import Sampler

__all__ = ["Drafted", "Drawn", "Draws", "Sampler"]
