"""Chain hashes of token blocks: equal hashes mean equal tokens from the very start.

Computed where the tokens are, of prompts in the API process and of answers in the runtime; the Core
sees only the digests.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

HASH_BYTES = 16


def chain_hashes(tokens: Sequence[int], block_size: int, parent: bytes = b"") -> bytes:
    """The digests of every full block of `tokens`, `HASH_BYTES` each, concatenated.

    `parent` is the digest of the block before `tokens[0]` (or a salt that keeps caches apart).
    """
    raw = np.asarray(tokens, dtype="<i4").tobytes()
    stride = 4 * block_size
    digests = []
    for start in range(0, len(raw) - stride + 1, stride):
        digest = hashlib.blake2b(parent, digest_size=HASH_BYTES)
        digest.update(raw[start : start + stride])
        parent = digest.digest()
        digests.append(parent)
    return b"".join(digests)


def salt_digest(salt: str) -> bytes:
    """The `parent` of first blocks that keeps the cached blocks of one salt from all others."""
    return hashlib.blake2b(salt.encode(), digest_size=HASH_BYTES, person=b"llmd salt").digest()


def split_hashes(hashes: bytes) -> list[bytes]:
    """The single digests of a concatenation."""
    return [hashes[i : i + HASH_BYTES] for i in range(0, len(hashes), HASH_BYTES)]
