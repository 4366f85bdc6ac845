"""One tiny model of the zoo: a type, what sets it apart, and what taking that away would be."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Variant:
    """A configuration of a type, and the mutants that its check must catch."""

    model_type: str
    name: str
    args: dict[str, Any] = field(default_factory=dict)
    """Arguments of the configuration's class, over the tiny sizes."""
    raw: dict[str, Any] = field(default_factory=dict)
    """Keys of config.json as they are written, over what the class itself writes; or `DROP`."""
    dtype: str = "float32"
    sharded: bool = False
    mutants: tuple[str, ...] = ("keys",)
    """By their names in `tests.zoo.mutants`."""
    revert: dict[str, Any] = field(default_factory=dict)
    """For the mutant "config": keys of config.json that take the feature away; or `DROP`."""

    @property
    def label(self) -> str:
        return f"{self.model_type}/{self.name}"
