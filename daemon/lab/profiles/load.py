"""Reading and writing profiles: shipped ones by name, others by path."""

import re
from pathlib import Path

import msgspec

from daemon.base.files import TABLE_BYTES, read_whole, write_whole
from daemon.base.nearest import unknown
from daemon.cost.profile import Profile
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.experts_in_ram import with_experts_in_ram
from daemon.lab.profiles.pipeline import staged
from daemon.lab.profiles.quantised import WEIGHT_BITS, quantised, with_narrow_cache

_FOLDER = Path(__file__).parent
_SUFFIX = ".json"
_BETWEEN_NUMBERS = re.compile(rb"(?<=[0-9,\[])\s*\n\s*(?=[-0-9\]])")
_DERIVED = re.compile(
    rf"(?:-(?P<weights>{'|'.join(WEIGHT_BITS)}))?(?P<cache>-kv8)?(?:-ram(?P<below>[1-9][0-9]*))?(?:-pp(?P<stages>[1-9][0-9]*))?"
)

_IN_FILE = re.compile(rf"(?P<path>.+\{_SUFFIX})-ram(?P<below>[1-9][0-9]*)")


def names() -> tuple[str, ...]:
    """The profiles that come with llmd, in order."""
    return tuple(sorted(path.name.removesuffix(_SUFFIX) for path in _FOLDER.glob(f"*{_SUFFIX}")))


def load_profile(name_or_path: str) -> Profile:
    """A shipped profile by name, or the profile in a file.

    A shipped name may be followed, in this order, by a format of `WEIGHT_BITS` for its weights,
    `-kv8` for keys and values in 8 bits, `-ramN` for a mixture with the experts of N layers in host
    memory, and `-ppN`: cut into N pipeline stages. A text that ends in .json or holds a slash is a
    path, which `-ramN` may follow. Raises ProfileError.
    """
    if in_file := _IN_FILE.fullmatch(name_or_path):
        return with_experts_in_ram(_read(Path(in_file["path"])), int(in_file["below"]))
    if name_or_path.endswith(_SUFFIX) or "/" in name_or_path:
        return _read(Path(name_or_path))
    shipped = names()
    if name_or_path in shipped:
        return _read(_FOLDER / f"{name_or_path}{_SUFFIX}")
    for whole in sorted(filter(name_or_path.startswith, shipped), key=len, reverse=True):
        found = _DERIVED.fullmatch(name_or_path.removeprefix(whole))
        if found:
            return _derived(_read(_FOLDER / f"{whole}{_SUFFIX}"), found)
    raise ProfileError(unknown("profile", name_or_path, shipped, most=3))


def _derived(profile: Profile, said: re.Match[str]) -> Profile:
    if said["weights"]:
        profile = quantised(profile, said["weights"])
    if said["cache"]:
        profile = with_narrow_cache(profile)
    if said["below"]:
        profile = with_experts_in_ram(profile, int(said["below"]))
    stages = int(said["stages"] or 1)
    return profile if stages == 1 else staged(profile, stages)


def save_profile(profile: Profile, path: Path) -> None:
    """Write a profile as JSON, readable and with stable bytes. Raises ProfileError."""
    fields = msgspec.to_builtins(profile)
    if profile.operators is None:
        del fields["operators"]
    if not profile.edges.turn_s:  # files of before stay as they are
        del fields["edges"]["turn_s"]
    for name in ("ram_bytes_per_s", "ram_flops"):
        if not fields["device"][name]:
            del fields["device"][name]
    text = msgspec.json.format(msgspec.json.encode(fields), indent=1)
    try:
        write_whole(path, _BETWEEN_NUMBERS.sub(b"", text) + b"\n")
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from error


def _read(path: Path) -> Profile:
    try:
        return msgspec.json.decode(read_whole(path, TABLE_BYTES), type=Profile)
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProfileError(f"{path}: not a profile: {error}") from error
