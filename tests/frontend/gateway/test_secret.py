"""Keys nobody can guess, and what is kept of them."""

from __future__ import annotations

import base64
import hashlib

from frontend.gateway.key_file import PREFIX, hash_of, id_of, new_key


def test_a_key_is_256_random_bits() -> None:
    keys = [new_key() for _ in range(100)]
    parts = [key.removeprefix(PREFIX) for key in keys]
    assert all(len(base64.urlsafe_b64decode(f"{part}=")) == 32 for part in parts)
    assert len({part[:8] for part in parts}) == len({part[-8:] for part in parts}) == len(keys)


def test_what_is_kept_is_its_sha256_and_logs_know_the_beginning_of_that() -> None:
    key = new_key()
    kept = hash_of(key)
    assert kept == hashlib.sha256(key.encode()).hexdigest()
    assert kept.startswith(id_of(kept)) and len(id_of(kept)) == 16
