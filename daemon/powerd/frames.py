"""The questions to llmd-powerd and its answers: one JSON object per line.

A line has at most `FRAME_LIMIT_BYTES` with its end. Answers come in the order of the questions.
"""

import math
from pathlib import Path
from typing import Annotated

import msgspec

FRAME_LIMIT_BYTES = 4096
SERVICE_SOCKET = Path("/run/llmd-powerd/powerd.sock")
"""The socket of the system's service."""

_TEXT_LIMIT = 300

Uuid = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9-]{1,95}\Z")]
"""A card's UUID as NVML writes it, such as GPU-1b2c...; NVML's own buffer has 96 bytes."""

Watts = Annotated[float, msgspec.Meta(ge=0)]


class PowerError(Exception):
    """A card's power could not be read or limited; the text gives the reason, for a person."""


class PowerLostError(PowerError):
    """llmd-powerd is absent or did not answer; its leases end when it does."""


class LeaseCap(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="verb", tag="lease"
):
    """Keep a card at no less than `watts` while this connection lives; None: no longer."""

    device: Uuid
    watts: Watts | None


class ReadCard(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="verb", tag="read"
):
    """Read a card's power and limits."""

    device: Uuid


PowerQuestion = LeaseCap | ReadCard


class CapInForce(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a lease: the card's limit now, and the range that it allows."""

    ok: bool = True
    cap_watts: float
    min_watts: float
    max_watts: float
    default_watts: float


class CardReading(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a read; None is a figure that the card does not report."""

    ok: bool = True
    watts: float
    cap_watts: float
    min_watts: float
    max_watts: float
    default_watts: float
    energy_j: float | None
    """Energy drawn since the driver was loaded."""
    binding: bool | None
    """Whether the card's clocks are lower than they could be because of the limit."""


class PowerRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a question that was refused or failed."""

    ok: bool = False
    error: str = ""


PowerAnswer = CapInForce | CardReading | PowerRefusal

_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(PowerQuestion).decode


def frame(message: PowerAnswer) -> bytes:
    """An answer as a line."""
    return _encode(message) + b"\n"


def question_frame(asked: PowerQuestion) -> bytes:
    """A question as a line. Raises PowerError where llmd-powerd would not understand it."""
    _check_finite(asked)  # JSON would say null, which gives a lease back
    line = _encode(asked)
    question_of(line)
    return line + b"\n"


def question_of(line: bytes) -> PowerQuestion:
    """Decode a line to its question. Raises PowerError."""
    try:
        asked: PowerQuestion = _decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PowerError(f"not understood: {error}") from error
    _check_finite(asked)
    return asked


def refusal(error: PowerError) -> PowerRefusal:
    """An error as an answer that fits into a frame, whatever it quotes."""
    text = str(error).encode("ascii", "backslashreplace").decode("ascii")
    return PowerRefusal(error=text[:_TEXT_LIMIT])


def _check_finite(asked: PowerQuestion) -> None:
    if isinstance(asked, LeaseCap) and not math.isfinite(asked.watts or 0):
        raise PowerError("not understood: watts must be finite")
