"""Sampling the next tokens of a batch: edits, filters, draws and log-probabilities."""

from daemon.engine.sampler.drafted import Drafted
from daemon.engine.sampler.sampled import Sampled, SampledTokens
from daemon.engine.sampler.sampler import Sampler

__all__ = ["Drafted", "Sampled", "SampledTokens", "Sampler"]
