"""Makes the shipped profiles: `python -m daemon.lab.profiles.make DATA_FOLDER`.

DATA_FOLDER holds one folder per source, named as in `IMPORTERS`, as its project publishes it.
Afterwards `docs/profiles.md` gets its list: `python -m daemon.lab.profiles.table docs/profiles.md`.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from daemon.cost.profile import Profile
from daemon.lab.profiles.importers import IMPORTERS
from daemon.lab.profiles.importers.splitwise import FILE, power_of
from daemon.lab.profiles.load import save_profile
from daemon.lab.profiles.quantised import quantised
from daemon.lab.profiles.roofline import scaled_to

_MEASURED = (
    *(("distserve", "opt-13b", "a100-80g", tp) for tp in (1, 2, 4)),
    *(("distserve", "opt-66b", "a100-80g", tp) for tp in (2, 4, 8)),
    *(("splitwise", "llama-2-70b", "h100", tp) for tp in (2, 4, 8)),
    ("aiconfigurator", "llama-3-8b", "a100-80g", 1),
    *(("aiconfigurator", "llama-2-70b", "h200", tp) for tp in (2, 4)),
)
_OPERATORS_WITH_POWER = tuple(("llama-2-70b", "a100-80g", tp) for tp in (2, 4, 8))
_ON_SMALL_CARDS = 2
"""The tensor parallel degree at which 48 GB cards hold the model in 4 bits."""
_ALSO_SCALED = (("llama-3-8b", 1), ("opt-13b", 1), ("opt-66b", 2))


def made(data: Path) -> Iterator[Profile]:
    """Every shipped profile. Raises ProfileError."""
    for kind, model, device, tp in _MEASURED:
        yield IMPORTERS[kind](data / kind, model, device, tp)
    for model, device, tp in _OPERATORS_WITH_POWER:
        profile = IMPORTERS["vidur"](data / "vidur", model, device, tp)
        note = "power: Splitwise (ISCA 2024), its simulator's table for A100 and H100; MIT"
        power = power_of(data / "splitwise" / FILE, model, tp)
        profile = replace(profile, power=power, source=(*profile.source, note))
        yield profile
        if tp == _ON_SMALL_CARDS:
            yield quantised(scaled_to(profile, "l40s"), "int4")
    for model, tp in _ALSO_SCALED:
        profile = IMPORTERS["aiconfigurator"](data / "aiconfigurator", model, "h200", tp)
        yield profile
        yield scaled_to(profile, "h100")


def main() -> None:
    """Write every profile beside this module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, metavar="DATA_FOLDER")
    for profile in made(parser.parse_args().data):
        save_profile(profile, Path(__file__).parent / f"{profile.name}.json")


if __name__ == "__main__":
    main()
