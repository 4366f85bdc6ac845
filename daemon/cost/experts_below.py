"""The time that a mixture's experts take where host memory holds some of them."""

HOST_S = 40e-6
"""Time until states have come over host memory, from a card or to it."""


def experts_s(on_device_s: float, below_s: float, num_layers: int) -> float:
    """Seconds of a step's experts in so many layers: the device and the CPU compute side by side,
    and states go down and come up in each layer.
    """
    return max(on_device_s, below_s) + 2 * num_layers * HOST_S
