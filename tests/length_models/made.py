"""Requests made by hand, whose answers follow a rule that can be learned."""

import numpy as np

from daemon.length_models.features import NUM_FEATURES
from daemon.length_models.prediction import Asked, Float32

DIM = 8


def unit(*components: float) -> Float32:
    """A vector of length 1."""
    vector = np.array(components, np.float32)
    return vector / np.linalg.norm(vector)


def stream(count: int, seed: int = 0, noise: float = 0.2) -> list[tuple[Asked, int]]:
    """Requests of four topics with answers of about 20, 60, 180 and 540 tokens.

    A topic shows in one feature and in the vector's direction; lengths have lognormal noise.
    """
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        topic = int(chance.integers(4))
        features = np.zeros(NUM_FEATURES, np.float32)
        features[topic] = 1.0
        vector = chance.normal(0.0, 0.05, DIM)
        vector[topic] += 1.0
        length = 20 * 3**topic * np.exp(noise * chance.standard_normal())
        asked = Asked(int(chance.integers(5, 50)), 4096, features, unit(*vector), truth=int(length))
        found.append((asked, max(1, int(length))))
    return found
