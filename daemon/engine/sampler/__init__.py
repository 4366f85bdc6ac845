"""Drawing the next tokens of a batch: edits, filters, draws and log-probabilities."""

from daemon.engine.sampler.sampler import Sampler, SampleResult

__all__ = ["SampleResult", "Sampler"]
