"""API keys: how they are made and hashed, and which `[[key]]` sections are refused.

A key is 32 random bytes, so that its plain SHA-256 can stand in a configuration file: unlike a
password's, it cannot be reversed by trying.
"""

import hashlib
import re
import secrets
from collections.abc import Iterator, Sequence

from daemon.config.schema import KeyConfig

KEY_PREFIX = "llmd-"
KEY_BYTES = 32

KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"[0-9a-fA-F]{64}")
_INT32_MAX = 2**31 - 1
_MOST_SCALE = 1000.0


def new_key() -> str:
    """A fresh key."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_of(key: str) -> str:
    """A key's hash for its `[[key]]` section. Raises UnicodeEncodeError for lone surrogates."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_faults(keys: Sequence[KeyConfig]) -> Iterator[tuple[str, str]]:
    """Every fault of the `[[key]]` sections: a dotted key and a sentence, never with a hash."""
    names: set[str] = set()
    hashes: set[str] = set()
    for number, key in enumerate(keys):
        place = f"key[{number}]"
        if not KEY_NAME.fullmatch(key.name):
            yield "key", f"{place}.name takes up to 64 of A-Z a-z 0-9 . _ -, got {key.name[:80]!r}"
            continue
        if not _HASH.fullmatch(key.hash):
            yield "key", f"{place}.hash ({key.name}) must be 64 hexadecimal digits: a SHA-256"
        if key.name in names:
            yield "key", f"two keys are named {key.name!r}"
        if key.hash.lower() in hashes:
            yield "key", f"{place} ({key.name}) has the hash of a key before it"
        names.add(key.name)
        hashes.add(key.hash.lower())
        yield from _limits(place, key)


def _limits(place: str, key: KeyConfig) -> Iterator[tuple[str, str]]:
    if not -_INT32_MAX <= key.priority <= _INT32_MAX:
        yield "key", f"{place}.priority ({key.name}) must be in +-{_INT32_MAX}, got {key.priority}"
    for limit in ("requests_per_minute", "tokens_per_minute", "max_running"):
        value = getattr(key, limit)
        if not 0 <= value <= _INT32_MAX:
            yield "key", f"{place}.{limit} ({key.name}) must be in 0..{_INT32_MAX}, got {value}"
    if not 0.0 <= key.slo_scale <= _MOST_SCALE:
        most = f"must be in 0..{_MOST_SCALE:g} (0: no deadline), got {key.slo_scale}"
        yield "key", f"{place}.slo_scale ({key.name}) {most}"
