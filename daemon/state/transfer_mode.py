"""How a prompt's keys and values go to another instance: in one piece, or layer by layer."""

from enum import StrEnum


class HandoffMode(StrEnum):
    """The way to send a prompt's KV; files and flags write its value."""

    AUTO = "auto"  # whichever is expected to end sooner
    SERIALIZED = "serialized"  # once the whole prompt is computed
    LAYERED = "layered"  # each layer as soon as it is computed


LAST_CHUNK, ARRIVAL = "last_chunk", "arrival"
PAIRINGS = (LAST_CHUNK, ARRIVAL)
"""When the instance of an answer is chosen: at its prompt's last chunk, or when the prompt arrives.
"""
HANDOFF_MODES = tuple(mode.value for mode in HandoffMode)
