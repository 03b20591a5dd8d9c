"""Encrypts the values of variables with `cryptography`, the extra `plait[env]`."""

import os
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from plait.errors import CorruptThread
from plait.parts.env.secret import Secret

__all__ = ["Sealer"]

# The labels from which keys and their ids are derived.
_KEY: Final = b"plait env key"
_ID: Final = b"plait env id"
# Sealed data begins with the id of a key and a nonce, of these numbers of bytes.
_ID_SIZE: Final = 4
_NONCE_SIZE: Final = 12


class Sealer:
    """Encrypts with the first of several secrets, and decrypts data that any of them has encrypted.

    The cipher is AES-256-GCM. Encrypted data is bound to a name: it cannot be decrypted under another one.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self._keys = [(_derive(each, _ID, _ID_SIZE), AESGCM(_derive(each, _KEY, 32))) for each in secrets]

    def seal(self, name: str, secret: Secret) -> bytes:
        """Encrypt a value."""
        id, key = self._keys[0]
        nonce = os.urandom(_NONCE_SIZE)
        return id + nonce + key.encrypt(nonce, secret.reveal().encode(), name.encode())

    def open(self, name: str, data: bytes) -> Secret:
        """Decrypt a value. Raises CorruptThread."""
        id, nonce, sealed = data[:_ID_SIZE], data[_ID_SIZE:][:_NONCE_SIZE], data[_ID_SIZE + _NONCE_SIZE :]
        found = next((key for known, key in self._keys if known == id), None)
        if found is None:
            raise CorruptThread(f"the variable {name} was encrypted with a secret that is not in PLAIT_SECRET")
        try:
            return Secret(found.decrypt(nonce, sealed, name.encode()).decode())
        except (InvalidTag, ValueError):
            pass
        raise CorruptThread(f"the variable {name} is damaged, or was stored under another name")


def _derive(secret: str, purpose: bytes, size: int) -> bytes:
    return HKDF(SHA256(), size, salt=None, info=purpose).derive(secret.encode())
