"""Messages of a worker and the processes of its self-test: a line of JSON each."""

import msgspec

from daemon.engine.verify.kernels.subject import Subject


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """To the child, on its standard input."""

    subject: Subject
    families: tuple[str, ...]  # to be tried, in this order
    deadlines_s: dict[str, float]  # for each of them
    by_torch: tuple[str, ...] = ()  # tried before and left to torch


class Imported(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Torch and Triton are there."""


class Trying(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A family is tried from now on."""

    family: str


class Late(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A family was late; it is tried once more, with the kernels that were compiled."""

    family: str


class Tried(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The outcome of a family's trial."""

    family: str
    fault: str = ""  # why torch computes it; empty: its kernels are right
    passing: bool = False  # the fault says nothing of the card: another start tries again


class Untried(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Nothing can be tried."""

    why: str


Message = Imported | Trying | Late | Tried | Untried
