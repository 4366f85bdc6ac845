"""API keys: from an Authorization header to the account of a key."""

import hashlib
import hmac
from collections.abc import Sequence

from daemon.api.http.account import Account
from daemon.api.replies.errors import ApiError, unavailable
from daemon.config.schema import KeyConfig

_SCHEME = "bearer"


class Keyring:
    """The accounts of all keys. Without keys every request is admitted, without an account.

    Until the runtime has sent the keys, no request is admitted.
    """

    def __init__(self) -> None:
        self.known = False
        self._accounts: list[tuple[bytes, Account]] = []

    def update(self, keys: Sequence[KeyConfig]) -> None:
        """Replace the keys. Accounts stay with their names."""
        old = {account.key.name: account for _digest, account in self._accounts}
        self._accounts = []
        for key in keys:
            account = old.get(key.name)
            if account is None:
                account = Account(key)
            else:
                account.change(key)
            self._accounts.append((bytes.fromhex(key.hash), account))
        self.known = True

    @property
    def needs_key(self) -> bool:
        """Whether requests need a key, as far as is known by now."""
        return not self.known or bool(self._accounts)

    def admit(self, authorization: Sequence[str]) -> Account | None:
        """The account of a request's Authorization headers; None where no keys are configured.

        Raises ApiError 401 without a valid key, 503 before keys are known.
        """
        if not self.known:
            raise unavailable("the server is starting")
        if not self._accounts:
            return None
        key = _bearer(authorization)
        given = hashlib.sha256(key).digest()
        found: Account | None = None
        # Compare all of them, in constant time.
        for digest, account in self._accounts:
            if hmac.compare_digest(digest, given):
                found = account
        if found is None or not key:
            raise _unauthorized(bool(authorization))
        return found


def _bearer(authorization: Sequence[str]) -> bytes:
    """The key in `Authorization: Bearer KEY`; empty for anything else."""
    if len(authorization) != 1:
        return b""
    scheme, _, key = authorization[0].partition(" ")
    if scheme.lower() != _SCHEME:
        return b""
    return key.strip().encode("utf-8", "surrogateescape")


def _unauthorized(given: bool) -> ApiError:
    if given:
        return ApiError(401, "the API key is not valid here", code="invalid_api_key")
    message = "this server needs an API key: send the header `Authorization: Bearer KEY`"
    return ApiError(401, message, code="missing_api_key")
