"""The proof that a message comes from another stage of the same model: any caller of Triton may speak to a stage."""

from __future__ import annotations

import hashlib
import hmac
import os

from model_repository.contract.tensors import KEY_VARIABLE
from model_repository.errors import EngineFailed, KeyRefused

SIGNATURE_BYTES = 16  # the message follows


class Signature:
    """Signs messages with Triton's key, which all stages of a Triton have.

    Args:
        ensemble: of the model. Another model's stages sign differently.

    Raises:
        EngineFailed: the environment lacks the key.
    """

    def __init__(self, ensemble: str) -> None:
        key = os.environ.get(KEY_VARIABLE)
        if not key:
            raise EngineFailed(f"{KEY_VARIABLE} is not set; `conch serve` and `conch triton` set it")
        self._key = hashlib.blake2b(f"{ensemble} {key}".encode()).digest()

    def sign(self, message: bytes) -> bytes:
        """Return the message behind its signature."""
        return self._signature(message) + message

    def verified(self, signed: bytes, name: str) -> bytes:
        """Return the message without its signature. `name` is its tensor's, for the error.

        Raises:
            KeyRefused: it was signed without the key, or for another model.
        """
        signature, message = signed[:SIGNATURE_BYTES], signed[SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(message)):
            raise KeyRefused("another stage of this model must have signed it", name)
        return message

    def _signature(self, message: bytes) -> bytes:
        return hashlib.blake2b(message, key=self._key, digest_size=SIGNATURE_BYTES).digest()
