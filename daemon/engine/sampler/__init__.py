"""Drawing the next tokens of a batch: edits, filters, draws and log-probabilities."""

from daemon.engine.sampler.drafted import Drafted
from daemon.engine.sampler.drawn import Drawn, Draws
from daemon.engine.sampler.sampler import Sampler, means_of

__all__ = ["Drafted", "Drawn", "Draws", "Sampler", "means_of"]
