"""How a prompt's keys and values go to another instance: in one piece, or layer by layer."""

from enum import StrEnum


class HandoffMode(StrEnum):
    """What of the two is done; its value is what files and flags write."""

    AUTO = "auto"  # whichever is over sooner, as far as is known
    SERIALIZED = "serialized"  # once the whole prompt is computed
    LAYERED = "layered"  # each layer as soon as it is computed


HANDOFF_MODES = tuple(mode.value for mode in HandoffMode)
